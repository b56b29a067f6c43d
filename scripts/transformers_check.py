#!/usr/bin/env python3
"""Checks that transformers loads what `dsmoe convert` writes, and computes the same.

    pip install torch==2.8.0 transformers==5.23.0
    go build -o /tmp/dsmoe ./cmd/dsmoe && python scripts/transformers_check.py /tmp/dsmoe

For V2 and V3: the logits of the source and of every output, in float32 on CPU. They
must be equal to the bit where the weights and their layout in memory are,
and close elsewhere. The dequantised FP8 model is compared with the
golden pack's logits, since transformers runs FP8 itself only on a GPU.
"""
import os
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

root = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fixtures")
dsmoe = sys.argv[1]


def pack(folder, file, name):
    with safe_open(os.path.join(folder, file), "pt") as f:
        return f.get_tensor(name)


def logits(path, ids, mask):
    model, info = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        extra = [k for k in info.get(kind, []) if "rotary" not in str(k)]
        assert not extra, (path, kind, extra[:3])
    with torch.no_grad():
        return model.eval()(input_ids=ids, attention_mask=mask).logits


def convert(src, dst, *options):
    subprocess.run([dsmoe, "convert", src, dst, *options], check=True, stdout=subprocess.DEVNULL)
    return dst


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name in ("v2-lite", "v3"):
        src = os.path.join(root, name, "checkpoint")
        config = AutoConfig.from_pretrained(src)
        ids = torch.randint(0, config.vocab_size, (2, 17))
        mask = torch.ones_like(ids)
        want = logits(src, ids, mask)
        with tempfile.TemporaryDirectory() as work:
            for label, options, limit in (
                ("re-sharded", ["--max-shard-size", "100KB"], 0),
                ("fused", ["--experts", "fused"], 0),
                ("F32", ["--type", "f32"], 0),
                ("F16", ["--type", "f16", "--allow-overflow"], 1e-5),
                ("fused F32", ["--experts", "fused", "--type", "f32"], 1e-6),
            ):
                got = logits(convert(src, os.path.join(work, label.replace(" ", "-")), *options), ids, mask)
                diff = ((got - want).norm() / want.norm()).item()
                print(f"{name} {label}: relative difference of the logits {diff:.3g}")
                assert diff <= limit, (name, label, diff)
    src, golden = (os.path.join(root, "v3-fp8", d) for d in ("checkpoint", "golden-f32"))
    ids = pack(golden, "inputs.safetensors", "input_ids")
    want = pack(golden, "head.safetensors", "lm_head.output")
    with tempfile.TemporaryDirectory() as work:
        for experts in ("per-expert", "fused"):
            out = convert(src, os.path.join(work, experts), "--type", "f32", "--experts", experts)
            diff = ((logits(out, ids, torch.ones_like(ids)) - want).norm() / want.norm()).item()
            print(f"v3-fp8 F32 {experts} against its golden: {diff:.3g}")
            assert diff < 2e-6, diff
    print("transformers loads every output")


if __name__ == "__main__":
    main()
