"""Rewrites a BF16 checkpoint of one file as FP8 with a scale per 128 x 128 block, for
measurements: fp8.py SRC DST. The codes are the upper bytes of the weights with those of
NaN left out, the scales 2^-7: not a quantisation, but what one looks like. Norms, the
embedding, the head and the gates stay BF16. Needs nothing but Python.
"""

import json
import os
import struct
import sys

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
