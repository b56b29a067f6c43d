#!/usr/bin/env python3
"""Makes the fixtures of PyTorch's own format, with torch 2.8.0:

    python scripts/torchbin.py

fixtures/torch-bin/checkpoint   the weights of v1-dense in two .bin shards
fixtures/torch-bin/cases.bin    a state dict of every dtype and of views, with
                                cases.json: the sha256 of each tensor's bytes
"""
import hashlib
import json
import os
import shutil
import struct
from collections import OrderedDict

import torch

root = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fixtures")
out = os.path.join(root, "torch-bin")
TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def load(path):
    data = open(path, "rb").read()
    (n,) = struct.unpack("<Q", data[:8])
    for name, t in json.loads(data[8 : 8 + n]).items():
        if name != "__metadata__":
            begin, end = (8 + n + o for o in t["data_offsets"])
            yield name, torch.frombuffer(bytearray(data[begin:end]), dtype=TYPES[t["dtype"]]).reshape(t["shape"])


def raw(t):
    return t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def checkpoint():
    folder = os.path.join(out, "checkpoint")
    os.makedirs(folder)
    source = os.path.join(root, "v1-dense", "checkpoint")
    shutil.copyfile(os.path.join(source, "config.json"), os.path.join(folder, "config.json"))
    tensors = sorted(load(os.path.join(source, "model.safetensors")))
    half, index = len(tensors) // 2, {}
    for i, part in enumerate((tensors[:half], tensors[half:])):
        name = f"pytorch_model-{i + 1:05d}-of-00002.bin"
        torch.save(OrderedDict((k, v.clone()) for k, v in part), os.path.join(folder, name))
        index.update((k, name) for k, _ in part)
    size = sum(t.numel() * t.element_size() for _, t in tensors)
    with open(os.path.join(folder, "pytorch_model.bin.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": size}, "weight_map": index}, f, indent=2, sort_keys=True)


def cases():
    torch.manual_seed(1)
    base = torch.randn(6, 4)
    state = OrderedDict(
        f64=torch.randn(3, dtype=torch.float64), f32=base, f16=base.half(), bf16=base.bfloat16(),
        e4m3=base.to(torch.float8_e4m3fn), e5m2=base.to(torch.float8_e5m2),
        i64=torch.arange(5), i32=torch.arange(5, dtype=torch.int32), i16=torch.arange(5, dtype=torch.int16),
        i8=torch.arange(5, dtype=torch.int8), u8=torch.arange(5, dtype=torch.uint8), bool=torch.tensor([True, False]),
        scalar=torch.tensor(7.0), empty=torch.empty(0, 3), parameter=torch.nn.Parameter(base.clone()),
        tied=base, view=base[2:4], row=base[5])
    state._metadata = OrderedDict({"": {"version": 1}})
    torch.save(state, os.path.join(out, "cases.bin"))
    sums = {k: [str(v.dtype), list(v.shape), hashlib.sha256(raw(v)).hexdigest()] for k, v in state.items()}
    json.dump(sums, open(os.path.join(out, "cases.json"), "w"), indent=1)
    torch.save(OrderedDict(turned=base.T), os.path.join(out, "transposed.bin"))


if __name__ == "__main__":
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    checkpoint()
    cases()
