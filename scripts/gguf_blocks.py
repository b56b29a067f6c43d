#!/usr/bin/env python3
"""Compares the block types of model/tensor with llama.cpp's own C code, and Q4_0, Q4_1, Q5_0,
Q5_1, Q8_0 and all decoding with the gguf package too: random and hostile rows, byte for byte.

    scripts/gguf_blocks.py                compares some million elements of each type; exits 1 on a difference
    scripts/gguf_blocks.py --fixture      writes fixtures/gguf-blocks/blocks.safetensors, for the tests
    scripts/gguf_blocks.py --time         prints the rates of encoding by the processor's time, alternating

Run it in the root of the repository, with a Python that has numpy, safetensors, gguf 0.19.0 and
llama-cpp-python 0.3.36 (llama.cpp 0c1e57098), built for x86-64. Its libggml-base is compiled
for SSE2 whatever the machine, so that no product is fused with a sum: bytes of builds that fuse
(ARM, or -march flags for all of ggml) may differ in single codes."""

import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time

import gguf
import llama_cpp
import numpy as np
from safetensors.numpy import save_file

TYPES = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "MXFP4": 39}
READ = ("MXFP4",)  # and not written
BLOCK = 256

ggml = ctypes.CDLL(os.path.join(os.path.dirname(llama_cpp.__file__), "lib", "libggml-base.so"))
ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                                     ctypes.c_int64, ctypes.c_void_p]


def size_of(name):
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    return BLOCK // elements * size


WEIGHED = [name for name in TYPES if name not in (*READ, "Q8_0", "IQ4_NL", "IQ4_XS")]


def encode(name, rows, importance=None):
    rows = np.ascontiguousarray(rows, np.float32)
    width = rows.shape[1]
    out = np.zeros((len(rows), size_of(name) * width // BLOCK), np.uint8)
    weights = None if importance is None else importance.ctypes.data
    n = ggml.ggml_quantize_chunk(TYPES[name], rows.ctypes.data, out.ctypes.data, 0, len(rows), width, weights)
    assert n == out.nbytes
    return out


def decode(name, blocks):
    blocks = np.ascontiguousarray(blocks)
    out = np.zeros((len(blocks), BLOCK), np.float32)
    suffix = name.lower().replace("_k", "_K")
    f = getattr(ggml, "dequantize_row_" + suffix)
    f.restype, f.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    f(blocks.ctypes.data, out.ctypes.data, out.size)
    return out


def hostile(r):
    """Rows that scales, roundings and empty blocks show on."""
    rows = [np.zeros(BLOCK), np.full(BLOCK, -0.0), np.full(BLOCK, 1.0), np.full(BLOCK, -3.3), np.full(BLOCK, 1e-45), np.full(BLOCK, 1e-40)]
    for scale in [1e-44, 1e-40, 1e-38, 1e-37, 1e-30, 1e-20, 1e-15, 1e-14, 3e-8, 1e-7, 1e-5, 1e-3, 1, 1e3, 1e4, 6e4, 4e5, 1e6, 8e6, 2e7, 1e10, 1e18, 2e19, 1e30, 3e38]:
        rows.append(np.clip(r.standard_normal(BLOCK) * scale, -3.4e38, 3.4e38))
        rows.append(np.abs(rows[-1]))
        rows.append(-np.abs(rows[-1]))
        rows.append(np.where(r.random(BLOCK) < 0.9, 0, rows[-3]))
        one = np.zeros(BLOCK)
        one[r.integers(BLOCK)] = scale
        rows.append(one)
        rows.append(r.standard_normal(BLOCK) + 0.0)
        rows[-1][r.integers(BLOCK)] = -scale
        rows.append(scale + r.standard_normal(BLOCK) * scale * 1e-4)      # nearly constant
        rows.append(scale * (1 + r.standard_normal(BLOCK) * 1e-7) * np.where(np.arange(BLOCK) // 32 % 2, 1, 1e-9))
        rows.append(r.integers(-8, 8, BLOCK) * scale)                     # ties
        rows.append((r.integers(-20, 20, BLOCK) + 0.5) * scale)
        rows.append(np.repeat(r.standard_normal(BLOCK // 16), 16) * scale)
    rows.append(np.arange(BLOCK) - 128.0)
    rows.append((np.arange(BLOCK) - 127) / 2)                             # every tie of Q8_0
    rows.append(np.concatenate([[127.0], np.nextafter(np.float32(0.5), np.float32(0)) + np.zeros(BLOCK - 1)]))
    with np.errstate(over="ignore"):
        rows = np.array(rows, np.float64).astype(np.float32)
    return rows[np.isfinite(rows).all(1)]                                 # others are refused before they are encoded


def rounded(rows):
    """The rows as BF16 and F16 hold them: many elements are equal, and scales tie."""
    bf16 = (rows.view(np.uint32) + 0x8000 & 0xFFFF0000).view(np.float32)
    with np.errstate(over="ignore"):
        f16 = rows.astype(np.float16).astype(np.float32)
    return [x[np.isfinite(x).all(1)] for x in (bf16, f16)]


def rows_of(r, n):
    normal = r.standard_normal((n, BLOCK)).astype(np.float32) * 0.02
    heavy = r.standard_t(2, (n, BLOCK)).astype(np.float32)
    bits = r.integers(0, 1 << 32, (n // 4, BLOCK), np.uint64).astype(np.uint32).view(np.float32)
    bits = np.where(np.isfinite(bits), bits, 0).astype(np.float32)
    wild = (r.standard_normal((n // 2, BLOCK)) * 2.0 ** r.integers(-40, 24, (n // 2, 1))).astype(np.float32)
    odd = np.concatenate([hostile(r) for _ in range(max(1, n // 400))])
    rows = np.concatenate([normal, heavy, bits, wild, odd])
    return np.concatenate([rows] + rounded(rows))


def noise(name, r, n):
    """Blocks of any bytes, and of scales that are ordinary numbers."""
    blocks = r.integers(0, 256, (2 * n, size_of(name)), np.uint8)
    blocks[n:] = encode(name, (r.standard_normal((n, BLOCK)) * 2.0 ** r.integers(-20, 10, (n, 1))).astype(np.float32))
    return blocks


def ours(binary, data, *arguments):
    return subprocess.run([binary, *arguments], input=data, stdout=subprocess.PIPE, check=True).stdout


def same(name, what, want, got, rows):
    got = np.frombuffer(got, want.dtype).reshape(want.shape)
    equal = got == want
    if want.dtype == np.float32:
        equal = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    bad = np.flatnonzero(~equal.all(1))
    print(f"{name:5} {what}: {len(want):,} rows, {len(bad)} differ")
    if len(bad):
        i = bad[0]
        print("  first:", i, "at", np.flatnonzero(~equal[i])[:8], "want", want[i][~equal[i]][:8], "got", got[i][~equal[i]][:8])
        if rows is not None:
            print("  row:", rows[i][:8], "largest", np.abs(rows[i]).max())
    return not len(bad)


def importances(r, width):
    """The importance of columns: even, heavy-tailed, and of columns and a whole part that never mattered."""
    some = np.where(r.random(width) < 0.5, 0, r.random(width))
    some[:32] = 0
    return [x.astype(np.float32) for x in (r.random(width), np.exp(3 * r.standard_normal(width)), some)]


def weighted_rows(r, name, rows):
    """Rows of another width than a block, without those whose scales are NaN."""
    width = 352 if name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1") else 768
    rows = rows[(np.abs(rows) < 1e17).all(1)]
    return np.ascontiguousarray(np.concatenate([rows[r.permutation(len(rows))] for _ in range(3)], 1)[:, :width])


def compare(binary, n):
    r, good = np.random.default_rng(18), True
    rows = rows_of(r, n)
    for name in TYPES:
        if name not in READ:
            want = encode(name, rows)
            good &= same(name, "encoded as ggml", want, ours(binary, rows.tobytes(), name), rows)
            if name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
                # the sign of a zero that is a scale or a minimum, and sums beyond float32, differ between ggml and gguf
                largest = np.abs(rows).reshape(len(rows), -1, 32).max(2)
                fine = ((largest > 1e-30) & (largest < 1e30)).all(1)
                with np.errstate(all="ignore"):
                    few = rows[fine] + np.float32(0)
                    theirs = gguf.quants.quantize(few, gguf.GGMLQuantizationType[name])
                good &= same(name, "encoded as gguf", theirs, encode(name, few).tobytes(), few)
        if name in WEIGHED:
            few = weighted_rows(r, name, rows)
            for importance in importances(r, few.shape[1]):
                got = ours(binary, importance.tobytes() + few.tobytes(), "-row", str(few.shape[1]), name)
                good &= same(name, "weighted as ggml", encode(name, few, importance), got, few)
        blocks = noise(name, r, n)
        want = decode(name, blocks)
        good &= same(name, "decoded as ggml", want, ours(binary, blocks.tobytes(), "-decode", name), None)
        with np.errstate(all="ignore"):
            theirs = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
        good &= same(name, "decoded as gguf", theirs.astype(np.float32), want.tobytes(), None)
    return good


def fixture(path):
    r = np.random.default_rng(7)
    odd = hostile(r)
    rows = np.concatenate([(r.standard_normal((4, BLOCK)) * 0.02).astype(np.float32), odd[r.permutation(len(odd))[:24]]])
    tensors = {"rows": rows}
    for name in TYPES:
        if name != "MXFP4":
            tensors[name] = encode(name, rows)
        tensors["noise." + name] = noise(name, r, 1)
        tensors["values." + name] = decode(name, tensors["noise." + name])
    wide = (r.standard_normal((6, 2 * BLOCK)) * 0.02).astype(np.float32)
    wide[1] = np.where(r.random(2 * BLOCK) < 0.8, 0, wide[1])
    wide[2] *= r.integers(0, 2, 2 * BLOCK) * 1000
    tensors["weighted.rows"], tensors["weighted.importance"] = wide, importances(r, 2 * BLOCK)[1]
    tensors["weighted.importance"][100:200] = 0
    for name in WEIGHED:
        tensors["weighted." + name] = encode(name, wide, tensors["weighted.importance"])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    save_file(tensors, path)
    os.chmod(path, 0o644)


def rates(binary, n):
    rows = (np.random.default_rng(1).standard_normal((n, BLOCK)) * 0.02).astype(np.float32)
    data = rows.tobytes()

    def seconds(name, times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        ours(binary, data, "-times", str(times), name)
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before

    for name in TYPES:
        if name in READ:
            continue
        more = 4 if name in ("Q2_K", "Q4_K", "Q5_K", "Q6_K") else 40
        for _ in range(3):
            start = time.process_time()
            for _ in range(more):
                encode(name, rows)
            theirs = more * rows.nbytes / 1e6 / (time.process_time() - start)
            mine = more * rows.nbytes / 1e6 / (seconds(name, 1 + more) - seconds(name, 1))
            print(f"{name:5} MB/s of float32: llama.cpp {theirs:7.0f}, ours, losses counted, {mine:7.0f}", flush=True)


def main():
    if "--fixture" in sys.argv:
        fixture("fixtures/gguf-blocks/blocks.safetensors")
        return 0
    with tempfile.TemporaryDirectory() as directory:
        binary = os.path.join(directory, "ggufblocks")
        subprocess.run(["go", "build", "-o", binary, "./scripts/ggufblocks"], check=True)
        if "--time" in sys.argv:
            rates(binary, 4000)
            return 0
        return 0 if compare(binary, 4000) else 1


if __name__ == "__main__":
    sys.exit(main())
