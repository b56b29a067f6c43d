#!/usr/bin/env python3
"""Writes cmd/dsmoe/testdata/inspect_values.json: statistics of some tensors of the fixtures by
numpy, and hashes of whole checkpoints by the BLAKE3 of Python, for the tests of `dsmoe inspect
stats` and `hash`. Needs numpy 2 and blake3. Run it in the root of the repository."""

import glob
import json
import struct

import blake3
import numpy as np

FIXTURES = ["v1-base", "v1-gqa-norm-freq2", "v1-top1-noshared", "v3", "v3-fp8"]
QUANTILES = ["0.001", "0.07", "0.5", "0.99"]
TENSORS = ["lm_head.weight", "model.embed_tokens.weight", "model.norm.weight", "model.layers.0.mlp.down_proj.weight",
           "model.layers.1.self_attn.o_proj.weight", "model.layers.1.mlp.gate.weight",
           "model.layers.1.mlp.experts.2.up_proj.weight", "model.layers.1.mlp.experts.2.down_proj.weight"]


def read(directory):
    """All tensors: name -> (dtype, shape, bytes)."""
    tensors = {}
    for path in glob.glob(directory + "/*.safetensors"):
        with open(path, "rb") as f:
            data = f.read()
        (size,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[name] = (entry["dtype"], entry["shape"], data[8 + size + begin : 8 + size + end])
    return tensors


def e4m3():
    """The numbers of F8_E4M3 by their codes."""
    table = []
    for code in range(256):
        sign, exponent, mantissa = -1.0 if code & 128 else 1.0, code >> 3 & 15, code & 7
        if exponent == 15 and mantissa == 7:
            table.append(float("nan"))
        elif exponent == 0:
            table.append(sign * mantissa / 8 * 2.0**-6)
        else:
            table.append(sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return np.array(table, dtype=np.float32)


def values(tensors, name):
    """A tensor's numbers as float32."""
    dtype, shape, data = tensors[name]
    if dtype == "F32":
        x = np.frombuffer(data, dtype="<f4")
    elif dtype == "F16":
        x = np.frombuffer(data, dtype="<f2").astype(np.float32)
    elif dtype == "BF16":
        x = (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        x = e4m3()[np.frombuffer(data, dtype=np.uint8)].reshape(shape)
        scales = values(tensors, name + "_scale_inv")
        x = x * np.kron(scales, np.ones((128, 128), dtype=np.float32))[: shape[0], : shape[1]]
    return x.reshape(shape)


def stats(x):
    wide = x.astype(np.float64)
    return {"elements": x.size, "zeros": int((x == 0).sum()), "min": float(x.min()), "max": float(x.max()),
            "mean": float(wide.mean()), "std": float(wide.std()),
            "quantiles": [{"q": q, "value": float(np.quantile(x, np.float64(q), method="inverted_cdf"))} for q in QUANTILES],
            "median_absmax": float(np.sort(np.abs(x.reshape(x.shape[0], -1)).max(axis=1))[(x.shape[0] - 1) // 2])}


def model_hash(tensors):
    lines = []
    for name, (_, shape, _) in tensors.items():
        if not name.endswith("_scale_inv"):
            head = "F32" + "".join(f" {n}" for n in shape) + "\n"
            digest = blake3.blake3(head.encode() + values(tensors, name).astype("<f4").tobytes()).hexdigest()
            lines.append(f"{name} blake3:{digest}\n".encode())
    return "blake3:" + blake3.blake3(b"".join(sorted(lines))).hexdigest()


def main():
    out = {}
    for fixture in FIXTURES:
        tensors = read(f"fixtures/{fixture}/checkpoint")
        out[fixture] = {"model": model_hash(tensors), "tensors": {n: stats(values(tensors, n)) for n in TENSORS if n in tensors}}
    with open("cmd/dsmoe/testdata/inspect_values.json", "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


main()
