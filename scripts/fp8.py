"""FP8 with a scale per block.

    fp8.py SRC DST    rewrites a BF16 checkpoint of one file, for measurements
    fp8.py --fixture  writes fixtures/fp8-blocks/blocks.safetensors, for the tests

The codes of DST are the upper bytes of the weights with those of NaN left out, the scales
2^-7: not a quantisation, but what one looks like. Norms, the embedding, the head and the gates
stay BF16. Needs nothing but Python.

The fixture holds numbers in F32, F16 and BF16 and what Fp8Quantize of transformers makes of them,
in blocks of 8 x 16: .f32 with scales in F32, .ue8m0 with powers of two. Run it in the root of
the repository, with the versions of scripts/requirements-native.txt.
"""

import json
import os
import struct
import sys



def blocks(r):
    """Blocks that scales and roundings show on, none with a magnitude below 448 * 2^-126."""
    import numpy as np

    steps = np.arange(128) % 64 * 0.25 - 7  # ties of the numbers from 4 to 8
    yield r.normal(size=(40, 128))
    yield r.normal(size=(8, 128)) * 10.0 ** r.uniform(-34, 4, size=(8, 1))
    yield r.normal(size=(8, 128)) * 10.0 ** r.uniform(-10, 0, size=(8, 128))  # down to denormal codes
    yield [np.zeros(128), np.full(128, -0.0), np.append(np.full(127, 1e-40), 1), np.append(np.full(127, -0.0), -448)]
    for top in (448, 448 * 2.0**-9, 450, 446, 480 * 2.0**5, 256, 255, 2.0**-14):
        yield [np.append(steps[:127] * top / 448, top), np.append(steps[:127] * top / 512, -top)]
    yield [np.append(np.arange(127) * 2.0**-10 * top, 448 * top) for top in (1, 2.0**-20, 3)]  # ties of denormal codes
    yield [np.full(128, -65504.0)]


def fixture(path):
    import numpy as np
    import torch
    import transformers
    from safetensors.torch import save_file
    from transformers.integrations.finegrained_fp8 import Fp8Quantize
    from types import SimpleNamespace as Namespace

    rows = np.concatenate([np.array(b) for b in blocks(np.random.default_rng(7))])
    rows = rows[: len(rows) // 5 * 5].reshape(-1, 5, 8, 16).transpose(0, 2, 1, 3).reshape(-1, 80)
    tensors = {}
    for name, dtype in (("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)):
        x = torch.from_numpy(rows.astype(np.float32)).to(dtype).clone()
        tensors[name] = x
        for scales in ("float", "ue8m0"):
            config = Namespace(weight_block_size=(8, 16), scale_fmt=scales)
            out = Fp8Quantize(Namespace(quantization_config=config)).convert({"x.weight": x})
            kind = {"float": "f32"}.get(scales, scales)
            tensors[f"{name}.{kind}"] = out["x.weight"].view(torch.uint8)
            tensors[f"{name}.{kind}.scales"] = out["x.weight_scale_inv"].to(torch.float32)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    save_file(tensors, path, {"made by": f"scripts/fp8.py, torch {torch.__version__}, transformers {transformers.__version__}"})


if sys.argv[1:] == ["--fixture"]:
    fixture("fixtures/fp8-blocks/blocks.safetensors")
    sys.exit()
source, target = sys.argv[1:]
os.mkdir(target)
config = json.load(open(f"{source}/config.json"))
config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
json.dump(config, open(f"{target}/config.json", "w"), indent=2)

data = open(f"{source}/model.safetensors", "rb")
(length,) = struct.unpack("<Q", data.read(8))
header = json.loads(data.read(length))
header.pop("__metadata__", None)
start = 8 + length
codes = bytes(b if b & 0x7F != 0x7F else b ^ 1 for b in range(256))  # no NaN


def stays(name, shape):
    return len(shape) != 2 or name.endswith((".gate.weight", "embed_tokens.weight", "lm_head.weight"))


entries, offset = {}, 0
for name, info in header.items():
    shape = info["shape"]
    rows = shape[0]
    if stays(name, shape):
        size = info["data_offsets"][1] - info["data_offsets"][0]
        entries[name] = dict(info, data_offsets=[offset, offset + size])
        offset += size
        continue
    grid = [-(-shape[0] // 128), -(-shape[1] // 128)]
    entries[name] = {"dtype": "F8_E4M3", "shape": shape, "data_offsets": [offset, offset + rows * shape[1]]}
    offset += rows * shape[1]
    entries[name + "_scale_inv"] = {"dtype": "F32", "shape": grid, "data_offsets": [offset, offset + 4 * grid[0] * grid[1]]}
    offset += 4 * grid[0] * grid[1]
text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
text += b" " * (-len(text) % 8)
with open(f"{target}/model.safetensors", "wb") as out:
    out.write(struct.pack("<Q", len(text)) + text)
    for name, info in header.items():
        begin, end = info["data_offsets"]
        data.seek(start + begin)
        raw = data.read(end - begin)
        if stays(name, info["shape"]):
            out.write(raw)
            continue
        out.write(raw[1::2].translate(codes))
        out.write(struct.pack("<f", 2.0**-7) * (-(-info["shape"][0] // 128) * -(-info["shape"][1] // 128)))
