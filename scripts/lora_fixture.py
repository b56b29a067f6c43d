#!/usr/bin/env python3
"""Makes fixtures/lora: adapters of peft, and numbers of the weights that peft merges them into.

    lora_fixture.py                 writes fixtures/lora/*; run it in the root of the repository
    lora_fixture.py --check DSMOE   also merges with the program DSMOE, and compares every number

An adapter is loaded onto a fixture's checkpoint as PeftModel.from_pretrained does, in F32 beside weights in
BF16, and merged with merge_and_unload(). merged.safetensors has some numbers of each changed weight:
ADAPTER/NAME, and ADAPTER/NAME.at their places.

  mla       DeepSeek-V3: all projections of MLA, shared experts, with rank_pattern and alpha_pattern; a norm whole
  fused     DeepSeek-V3: target_parameters, gate_up_proj and down_proj of one layer's experts, and the router
  experts   DeepSeek-V2-Lite: each expert apart, as transformers 4 names them, and q_proj
  square    GLM-4.5: rsLoRA; gate_up_proj is square; shared experts, k_proj, and the embedding;
            adapter_model.bin
"""
import argparse
import json
import os
import shutil
import subprocess
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

ROOT = "fixtures/lora"
MLA = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
# as modules they would stand for the routed experts': peft converts these names for transformers 5
SHARED = [f"{layer}.mlp.shared_experts.{p}_proj.weight" for layer in (2,) for p in ("gate", "up", "down")]
SAMPLES = 12  # numbers of each weight that a fixture has


def base(name):
    path = f"fixtures/{name}/checkpoint"
    return AutoModelForCausalLM.from_pretrained(path, dtype="auto", attn_implementation="eager")


def draw(state, r):
    return {n: 0.1 * torch.randn(t.shape, generator=r) if "lora_" in n else t + 0.01 * torch.randn(t.shape, generator=r)
            for n, t in sorted(state.items())}


def save(out, name, rng, pickle=False, **config):
    """An adapter that peft saves, with random factors."""
    model = get_peft_model(base(name), LoraConfig(bias="none", task_type="CAUSAL_LM", **config))
    model.save_pretrained(out, save_embedding_layers=False)
    file = out + "/adapter_model.safetensors"
    state = {n: t.bfloat16().contiguous() for n, t in draw(load_file(file), rng).items()}
    save_file(state, file, metadata={"format": "pt"})
    if pickle:
        os.remove(file)
        torch.save(state, out + "/adapter_model.bin")
    if os.path.exists(out + "/README.md"):
        os.remove(out + "/README.md")


def apart(out, r):
    """An adapter of transformers 4, in which each expert is a module."""
    c = json.load(open("fixtures/v2-lite/checkpoint/config.json"))
    hidden, inner, rank, state = c["hidden_size"], c["moe_intermediate_size"], 1, {}

    def add(module, rows, cols):
        at = f"base_model.model.model.layers.1.{module}."
        state[at + "lora_A.weight"] = (0.1 * torch.randn(rank, cols, generator=r)).bfloat16()
        state[at + "lora_B.weight"] = (0.1 * torch.randn(rows, rank, generator=r)).bfloat16()

    for e in range(c["n_routed_experts"]):
        add(f"mlp.experts.{e}.gate_proj", inner, hidden)
        add(f"mlp.experts.{e}.up_proj", inner, hidden)
        add(f"mlp.experts.{e}.down_proj", hidden, inner)
    heads = c["num_attention_heads"] * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    add("self_attn.q_proj", heads, hidden)
    os.makedirs(out)
    save_file(state, out + "/adapter_model.safetensors", metadata={"format": "pt"})
    config = {"base_model_name_or_path": "v2-lite", "bias": "none", "fan_in_fan_out": False, "init_lora_weights": True,
              "layers_to_transform": [1], "lora_alpha": 6, "lora_dropout": 0.0, "modules_to_save": None,
              "peft_type": "LORA", "r": rank, "target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"],
              "task_type": "CAUSAL_LM", "use_rslora": False}
    json.dump(config, open(out + "/adapter_config.json", "w"), indent=2)


ADAPTERS = {
    "mla": ("v3", lambda out, r: save(out, "v3", r, r=2, lora_alpha=4, target_modules=MLA, modules_to_save=["model.norm"], target_parameters=SHARED,
                                      rank_pattern={"kv_b_proj": 3}, alpha_pattern={"layers.2.self_attn.o_proj": 5},
                                      layers_to_transform=[2])),
    "fused": ("v3", lambda out, r: save(out, "v3", r, r=1, lora_alpha=3, target_modules=[], target_parameters=[
        "2.mlp.experts.gate_up_proj", "2.mlp.experts.down_proj", "2.mlp.gate.weight"])),
    "experts": ("v2-lite", apart),
    "square": ("glm4-moe", lambda out, r: save(out, "glm4-moe", r, True, r=2, lora_alpha=4, use_rslora=True,
                                               target_modules=["k_proj", "embed_tokens"],
                                               target_parameters=["1.mlp.experts.gate_up_proj"] + SHARED)),
}


def merge(name, adapter):
    """The weights as transformers saves them, before and after."""
    states = []
    for path in [None, adapter]:
        model = base(name)
        if path:
            model = PeftModel.from_pretrained(model, path).merge_and_unload()
        states.append({n: t.detach().clone() for n, t in model.state_dict().items()})
    return states


def sample(adapter, before, after, r):
    out = {}
    for n, t in after.items():
        if not torch.equal(t.float(), before[n].float()):
            at = torch.randperm(t.numel(), generator=r)[:SAMPLES].sort().values
            out[f"{adapter}/{n}"], out[f"{adapter}/{n}.at"] = t.flatten()[at].contiguous(), at.int()
    return out


def unit(x):
    """The distance of BF16 numbers at x."""
    return torch.exp2(torch.floor(torch.log2(x.abs().clamp_min(2.0**-126))) - 7)


def compare(dsmoe, name, adapter, before, after):
    """Every number that dsmoe writes is peft's or its neighbour. Of parameters, as experts are, and of embeddings it
    rounds B·A to BF16, too."""
    out = tempfile.mkdtemp()
    subprocess.run([dsmoe, "convert", f"fixtures/{name}/checkpoint", out + "/merged", "--adapter", adapter, "--experts",
                    "fused", "--max-shard-size", "none"], check=True, stdout=subprocess.DEVNULL)
    got, different, changed = load_file(out + "/merged/model.safetensors"), 0, 0
    for n, t in after.items():
        x, y, w = got[n].double(), t.double(), before[n].double()
        if torch.equal(y, w):
            assert torch.equal(x, w), n
            continue
        limit = unit(torch.maximum(x.abs(), y.abs()))
        if ".mlp." in n or "embed" in n:
            limit += unit(x - w) / 2
        far = (x - y).abs() > limit
        assert not far.any(), (n, int(far.sum()), t.numel())
        different, changed = different + int((x != y).sum()), changed + x.numel()
    print(f"{adapter}: of {changed} numbers that change {different} are not peft's, but within its roundings")
    shutil.rmtree(out)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--check", metavar="DSMOE")
    args = args.parse_args()
    torch.manual_seed(0)
    shutil.rmtree(ROOT, ignore_errors=True)
    samples = {}
    for i, (adapter, (name, make)) in enumerate(ADAPTERS.items()):
        r = torch.Generator().manual_seed(i)
        out = f"{ROOT}/{adapter}"
        make(out, r)
        config = json.load(open(out + "/adapter_config.json"))
        config["base_model_name_or_path"] = name
        for key in ["target_modules", "target_parameters", "modules_to_save"]:
            if isinstance(config.get(key), list):
                config[key] = sorted(config[key])
        json.dump(config, open(out + "/adapter_config.json", "w"), indent=1, sort_keys=True)
        before, after = merge(name, out)
        samples |= sample(adapter, before, after, r)
        if args.check:
            compare(args.check, name, out, before, after)
    save_file(samples, ROOT + "/merged.safetensors")


main()
