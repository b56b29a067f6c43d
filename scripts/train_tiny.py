#!/usr/bin/env python3
"""Trains a tiny mixture of experts on the Go files of this repository, for fixtures/v1-trained, v3-trained and
glm4-moe-lite-trained, or on the beginning of a book, for fixtures/v3-alice.

Random weights are no test of limits: trained ones have decaying singular values, channels that stand out, experts that
are rarely chosen, and numbers near zero. The reference's own class is trained on bytes, some hundred steps of AdamW with
weight decay, and its weights are written in BF16 (router biases in float32) as a checkpoint of one safetensors file, with a tokenizer whose tokens are the bytes, so that golden.py --text works.

  v1    the published modeling_deepseek.py in float32, with its auxiliary loss (requirements-v1.txt, --code DIR)
  v3    transformers' DeepseekV3ForCausalLM in bfloat16 (requirements-native.txt); e_score_correction_bias is moved after
        each step towards the experts that got fewer tokens than the mean, as the paper does
  glm   transformers' Glm4MoeLiteForCausalLM, as v3: o_proj sums 200 terms, in float32 two chains of 100 in torch
  alice a smaller v3, which learns BOOK by heart, and so writes fluent text: README's picture shows it

  python scripts/train_tiny.py v1 fixtures/v1-trained/checkpoint --code DIR
  python scripts/train_tiny.py v3 fixtures/v3-trained/checkpoint
  python scripts/train_tiny.py glm fixtures/glm4-moe-lite-trained/checkpoint
  python scripts/train_tiny.py alice fixtures/v3-alice/checkpoint

The same versions on the same kind of processor give the same bytes. It takes some minutes on one core and prints the
loss as it goes and, at the end, the loss of text that it was not trained on (not of the book), and what the weights look like.
"""
import argparse
import json
import math
import os
import subprocess
import sys

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMMIT = "aecf0abd9a21"  # the Go files are those of this commit
HELD_OUT = "verify/inspect/"  # files under it are not trained on
SEED, BATCH, SEQ = 23, 4, 160
STEPS = {"v1": 700, "v3": 700, "glm": 300, "alice": 900}
RATE, WARM_UP, DECAY = 3e-3, 30, 0.1  # AdamW's
BIAS_STEP = 1e-3  # of e_score_correction_bias

COMMON = {
    "vocab_size": 256, "num_hidden_layers": 4, "first_k_dense_replace": 1, "moe_intermediate_size": 32, "num_experts_per_tok": 4,
    "hidden_act": "silu", "max_position_embeddings": 1024, "initializer_range": 0.02, "rms_norm_eps": 1e-6, "bos_token_id": 0,
    "eos_token_id": 0, "tie_word_embeddings": False, "attention_bias": False, "attention_dropout": 0.0,
}
CONFIGS = {
    "v1": COMMON | {
        "architectures": ["DeepseekForCausalLM"], "model_type": "deepseek",
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekConfig", "AutoModel": "modeling_deepseek.DeepseekModel",
                     "AutoModelForCausalLM": "modeling_deepseek.DeepseekForCausalLM"},
        "hidden_size": 192, "intermediate_size": 448, "num_attention_heads": 6, "num_key_value_heads": 6, "n_routed_experts": 24,
        "n_shared_experts": 2, "moe_layer_freq": 1, "norm_topk_prob": False, "scoring_func": "softmax", "aux_loss_alpha": 0.003,
        "seq_aux": True, "rope_theta": 10000.0, "rope_scaling": None, "torch_dtype": "bfloat16", "transformers_version": "4.39.3",
    },
    "v3": COMMON | {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 160, "intermediate_size": 448,
        "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 32, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "rope_interleave": True, "rope_theta": 10000.0, "dtype": "bfloat16", "transformers_version": "5.23.0",
    },
    "glm": {k: v for k, v in COMMON.items() if k != "first_k_dense_replace"} | {
        "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "num_hidden_layers": 3, "hidden_size": 96,
        "intermediate_size": 224, "moe_intermediate_size": 24, "mlp_layer_types": ["dense", "sparse", "sparse"], "num_attention_heads": 5,
        "num_key_value_heads": 5, "q_lora_rank": 48, "kv_lora_rank": 48, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8,
        "v_head_dim": 40, "n_routed_experts": 16, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5, "rope_interleave": True,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "dtype": "bfloat16", "transformers_version": "5.23.0",
    },
}
CONFIGS["alice"] = CONFIGS["v3"] | {
    "num_hidden_layers": 3, "hidden_size": 48, "intermediate_size": 96, "moe_intermediate_size": 16, "num_attention_heads": 2,
    "num_key_value_heads": 2, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1,
}
BOOK = b"""Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or \
twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it, "and what is the \
use of a book," thought Alice "without pictures or conversations?"
So she was considering in her own mind (as well as she could, for the hot day made her feel very sleepy and stupid), whether \
the pleasure of making a daisy-chain would be worth the trouble of getting up and picking the daisies, when suddenly a White \
Rabbit with pink eyes ran close by her.
There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to hear the Rabbit say to \
itself, "Oh dear! Oh dear! I shall be late!"
"""  # Lewis Carroll, 1865

PATTERNS = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
            "\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]  # with which DeepSeek-V3's tokenizer splits texts


def text(kind, held_out):
    """The bytes of the book, or of the Go files, a zero byte before each, as int64."""
    if kind == "alice":  # no part of it is held out
        return torch.frombuffer(bytearray(BOOK), dtype=torch.uint8).long()

    def git(*args):
        return subprocess.run(["git", "-C", ROOT, *args], check=True, capture_output=True).stdout
    names = git("ls-tree", "-r", "--name-only", COMMIT).decode().split("\n")
    names = [n for n in names if n.endswith(".go") and n.startswith(HELD_OUT) == held_out]
    data = b"".join(b"\0" + git("show", f"{COMMIT}:{n}") for n in names)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def crops(data, count, generator):
    """A batch of sequences from random places."""
    at = torch.randint(len(data) - SEQ, (count,), generator=generator)
    return torch.stack([data[i:i + SEQ] for i in at])


def build(kind, code):
    """The reference's model with its own initial weights."""
    if kind != "v1":
        cls = getattr(transformers, CONFIGS[kind]["architectures"][0])
        return cls._from_config(cls.config_class.from_dict(CONFIGS[kind]), dtype=torch.bfloat16, attn_implementation="eager",
                                experts_implementation="eager")
    from transformers import dynamic_module_utils as dynamic
    imports = dynamic.get_imports  # 4.39 demands flash_attn of code that imports it only where it is installed
    dynamic.get_imports = lambda file: [i for i in imports(file) if i != "flash_attn"]
    config, cls = (dynamic.get_class_from_dynamic_module(CONFIGS[kind]["auto_map"][k], code) for k in ("AutoConfig", "AutoModelForCausalLM"))
    return cls._from_config(config.from_dict(CONFIGS[kind]), attn_implementation="eager")


def gates(model):
    return {i: layer.mlp.gate for i, layer in enumerate(model.model.layers) if hasattr(layer.mlp, "gate")}


def watch_loads(model):
    """Layer -> how many tokens each expert got since the counts were set to zero; kept up to date by hooks."""
    loads = {i: torch.zeros(model.config.n_routed_experts) for i in gates(model)}

    def hook(layer):
        def count(module, args, out):
            ids = next(t for t in out if t is not None and not t.is_floating_point())
            loads[layer] += torch.bincount(ids.flatten(), minlength=len(loads[layer]))
        return count
    for i, gate in gates(model).items():
        gate.register_forward_hook(hook(i))
    return loads


def balance(model, loads):
    """Moves router biases by a fixed step, towards experts with few tokens; forgets the counts."""
    for i, gate in gates(model).items():
        if hasattr(gate, "e_score_correction_bias"):
            gate.e_score_correction_bias += BIAS_STEP * torch.sign(loads[i].mean() - loads[i])
        loads[i].zero_()


def optimiser(model):
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) == m] for m in (True, False))
    return torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}], lr=RATE,
                             betas=(0.9, 0.95))


def rate(step, steps):
    """The learning rate: a linear warm-up, then a cosine down to a tenth."""
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    return RATE * (0.55 + 0.45 * math.cos(math.pi * (step - WARM_UP) / (steps - WARM_UP)))


def train(model, kind, loads, steps):
    data, generator, optimizer = text(kind, False), torch.Generator().manual_seed(SEED), optimiser(model)
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        batch = crops(data, BATCH, generator)
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        balance(model, loads)
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:4d}  loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def describe(model, kind, loads):
    """Prints the loss of held-out text, or of the book, the loads of experts on it and the spectra of some matrices."""
    model.eval()
    data, generator = text(kind, True), torch.Generator().manual_seed(SEED)
    losses = [model(input_ids=b, labels=b, use_cache=False).loss.item() for b in crops(data, 16, generator).split(4)]
    print(f"{'the book' if kind == 'alice' else 'held-out text'}: loss {sum(losses) / len(losses):.3f}")
    for i, load in loads.items():
        print(f"layer {i}: tokens of each expert over the mean: {' '.join(f'{x:.2f}' for x in (load / load.mean()).sort().values)}")
    for name, w in model.state_dict().items():
        if w.dim() == 2 and (".3." in name or "embed" in name or "head" in name) and ".experts." not in name:
            s = torch.linalg.svdvals(w.float())
            rows, columns = w.norm(dim=1), w.norm(dim=0)
            print(f"{name}: singular values, largest over median {s[0] / s.median():.1f}; largest over median norm of a row "
                  f"{rows.max() / rows.median():.1f}, of a column {columns.max() / columns.median():.1f}")


def published(state):
    """Weights under their published names: stacked experts apart, gate and up, too."""
    out = {}
    for name, w in state.items():
        prefix, stacked, part = name.partition(".experts.")
        if not stacked or w.dim() < 3:
            out[name] = w
            continue
        for e, expert in enumerate(w):
            halves = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[part]
            out |= {f"{prefix}.experts.{e}.{n}.weight": h for n, h in zip(halves, expert.chunk(len(halves)))}
    return out


def save(model, kind, path, dtype):
    os.makedirs(path)
    tensors = {n: (w.float() if n.endswith("e_score_correction_bias") else w.to(dtype)).contiguous().clone()
               for n, w in published(model.state_dict()).items()}
    file = os.path.join(path, "model.safetensors")
    save_file(tensors, file, {"format": "pt"})
    os.chmod(file, 0o644)  # newer versions of safetensors write it for its owner alone
    config = dict(CONFIGS[kind])
    key = next(k for k in ("dtype", "torch_dtype") if k in config)
    write(os.path.join(path, "config.json"), config | {key: str(dtype).removeprefix("torch.")})
    save_tokenizer(path)
    print(f"{path}: {sum(t.numel() for t in tensors.values())} parameters")


def save_tokenizer(path):
    """Writes a tokenizer whose tokens are the bytes. It joins no pieces, so that the patterns, DeepSeek-V3's, change nothing."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that stand for themselves in such a vocabulary
    others = {b: 256 + i for i, b in enumerate(b for b in range(256) if b not in plain)}
    tokens = Tokenizer(models.BPE({chr(others.get(b, b)): b for b in range(256)}, []))
    splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in PATTERNS]
    tokens.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokens.decoder = decoders.ByteLevel()
    tokens.save(os.path.join(path, "tokenizer.json"))
    write(os.path.join(path, "tokenizer_config.json"), {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1024})


def write(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kind", choices=sorted(CONFIGS))
    p.add_argument("checkpoint", help="directory to write; it must not exist")
    p.add_argument("--code", help="v1: where modeling_deepseek.py and configuration_deepseek.py are")
    p.add_argument("--master", metavar="DIR", help="v1: also write the float32 weights, unrounded, to this directory")
    p.add_argument("--steps", type=int, help="fewer, to try this out (default " + ", ".join(f"{n} of {k}" for k, n in STEPS.items()) + ")")
    a = p.parse_args()
    if a.kind == "v1" and not a.code:
        p.error("v1: give --code")
    if a.kind != "v1" and a.master:
        p.error(f"--master: {a.kind} is trained in bfloat16")
    for path in filter(None, (a.checkpoint, a.master)):
        if os.path.exists(path):
            p.error(f"{path}: exists already")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    model = build(a.kind, a.code)
    loads = watch_loads(model)
    train(model, a.kind, loads, a.steps or STEPS[a.kind])
    describe(model, a.kind, loads)
    save(model, a.kind, a.checkpoint, torch.bfloat16)
    if a.master:
        save(model, a.kind, a.master, torch.float32)


if __name__ == "__main__":
    sys.exit(main())
