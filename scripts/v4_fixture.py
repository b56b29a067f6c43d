#!/usr/bin/env python3
"""Makes fixtures/v4-gguf/checkpoint: a DeepSeek-V4 as it is published, of a form that llama.cpp loads.

    v4_fixture.py        writes fixtures/v4-gguf; run it in the root of the repository

FP8 E4M3 with an E8M0 scale per 128x128 block, experts in FP4 with one per 32 of a row, four streams, a layer of each
kind of attention (rates 4, 128 and none), a hash table, and a prediction layer. All rows of quantised matrices are
whole blocks of 32. The versions are those of scripts/requirements-native.txt.
"""
import json
import os
import shutil

import torch
from safetensors.torch import save_file

ROOT = "fixtures/v4-gguf/checkpoint"
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
CONFIG = {
    "architectures": ["DeepseekV4ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
    "compress_ratios": [4, 128, 0, 0], "compress_rope_theta": 160000, "eos_token_id": 1, "expert_dtype": "fp4",
    "hc_eps": 1e-6, "hc_mult": 4, "hc_sinkhorn_iters": 20, "head_dim": 64, "hidden_act": "silu", "hidden_size": 64,
    "index_head_dim": 64, "index_n_heads": 2, "index_topk": 16, "initializer_range": 0.02,
    "max_position_embeddings": 1024, "model_type": "deepseek_v4", "moe_intermediate_size": 32, "n_routed_experts": 6,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 4, "num_experts_per_tok": 2,
    "num_hash_layers": 1, "num_hidden_layers": 3, "num_key_value_heads": 1, "num_nextn_predict_layers": 1,
    "o_groups": 2, "o_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 32,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
                            "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-6,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 64,
                     "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "sliding_window": 128,
    "swiglu_limit": 10.0, "tie_word_embeddings": False, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
    "transformers_version": "4.57.1", "use_cache": True, "vocab_size": 96,
}


class Weights(dict):
    """Random weights under published names."""

    def __init__(self, seed):
        super().__init__()
        self.r = torch.Generator().manual_seed(seed)

    def random(self, *shape):
        return torch.randn(shape, generator=self.r)

    def fp8(self, name, rows, cols):
        scale = torch.randint(118, 122, (-(-rows // 128), -(-cols // 128)), generator=self.r).to(torch.uint8)
        self[name + ".weight"] = (self.random(rows, cols) * 16).to(torch.float8_e4m3fn)
        self[name + ".scale"] = scale.view(torch.float8_e8m0fnu)

    def fp4(self, name, rows, cols):
        codes = torch.randint(16, (rows, cols), generator=self.r).to(torch.uint8)
        codes[codes == 8] = 0  # llama.cpp has no -0
        self[name + ".weight"] = (codes[:, 0::2] | codes[:, 1::2] << 4).view(torch.int8)
        self[name + ".scale"] = torch.randint(122, 125, (rows, cols // 32), generator=self.r).to(torch.uint8).view(torch.float8_e8m0fnu)

    def plain(self, name, rows, cols, by=1.0):
        self[name] = (self.random(rows, cols) * by).bfloat16()

    def norm(self, name, n):
        self[name + ".weight"] = (1 + 0.1 * self.random(n)).bfloat16()

    def mixing(self, name, rows, scales):
        hc = CONFIG["hc_mult"]
        self[name + "_fn"] = self.random(rows, hc * CONFIG["hidden_size"]) * 0.1
        self[name + "_base"], self[name + "_scale"] = self.random(rows), 1 + 0.1 * self.random(scales)

    def compressor(self, name, rate, width):
        hidden, columns = CONFIG["hidden_size"], width * (2 if rate == 4 else 1)
        self.plain(name + ".wkv.weight", columns, hidden, 0.2)
        self.plain(name + ".wgate.weight", columns, hidden, 0.2)
        self[name + ".ape"] = 0.5 * self.random(rate, columns)
        self.norm(name + ".norm", width)

    def attention(self, at, rate):
        c = CONFIG
        hidden, rank, width, heads = c["hidden_size"], c["q_lora_rank"], c["head_dim"], c["num_attention_heads"]
        self.fp8(at + "wq_a", rank, hidden)
        self.norm(at + "q_norm", rank)
        self.fp8(at + "wq_b", heads * width, rank)
        self.fp8(at + "wkv", width, hidden)
        self.norm(at + "kv_norm", width)
        self.fp8(at + "wo_a", c["o_groups"] * c["o_lora_rank"], heads * width // c["o_groups"])
        self.fp8(at + "wo_b", hidden, c["o_groups"] * c["o_lora_rank"])
        self[at + "attn_sink"] = self.random(heads)
        if rate:
            self.compressor(at + "compressor", rate, width)
        if rate == 4:
            n, width = c["index_n_heads"], c["index_head_dim"]
            self.fp8(at + "indexer.wq_b", n * width, rank)
            self.plain(at + "indexer.weights_proj.weight", n, hidden, 0.2)
            self.compressor(at + "indexer.compressor", rate, width)

    def layer(self, at, rate, hashed):
        c = CONFIG
        hidden, inner, experts = c["hidden_size"], c["moe_intermediate_size"], c["n_routed_experts"]
        self.norm(at + "attn_norm", hidden)
        self.norm(at + "ffn_norm", hidden)
        for half in ("attn", "ffn"):
            self.mixing(f"{at}hc_{half}", (2 + c["hc_mult"]) * c["hc_mult"], 3)
        self.attention(at + "attn.", rate)
        self.plain(at + "ffn.gate.weight", experts, hidden, 0.2)
        if hashed:
            table = torch.stack([torch.randperm(experts, generator=self.r)[: c["num_experts_per_tok"]] for _ in range(c["vocab_size"])])
            self[at + "ffn.gate.tid2eid"] = table
        else:
            self[at + "ffn.gate.bias"] = 0.1 * self.random(experts)
        for e in range(experts):
            self.mlp(self.fp4, f"{at}ffn.experts.{e}.")
        self.mlp(self.fp8, at + "ffn.shared_experts.")

    def mlp(self, form, at):
        hidden, inner = CONFIG["hidden_size"], CONFIG["moe_intermediate_size"]
        form(at + "w1", inner, hidden)
        form(at + "w2", hidden, inner)
        form(at + "w3", inner, hidden)

    def model(self):
        c = CONFIG
        self.plain("embed.weight", c["vocab_size"], c["hidden_size"])
        for l in range(c["num_hidden_layers"]):
            self.layer(f"layers.{l}.", c["compress_ratios"][l], l < c["num_hash_layers"])
        self.norm("norm", c["hidden_size"])
        self.mixing("hc_head", c["hc_mult"], 1)
        self.plain("head.weight", c["vocab_size"], c["hidden_size"], 0.2)
        self.layer("mtp.0.", 0, False)
        for name in ("e_proj", "h_proj"):
            self.fp8("mtp.0." + name, c["hidden_size"], c["hidden_size"])
        for name in ("enorm", "hnorm", "norm"):
            self.norm("mtp.0." + name, c["hidden_size"])
        self.mixing("mtp.0.hc_head", c["hc_mult"], 1)


def main():
    torch.set_num_threads(1)
    w = Weights(32)
    w.model()
    shutil.rmtree(ROOT, ignore_errors=True)
    os.makedirs(ROOT)
    with open(ROOT + "/config.json", "w", encoding="utf-8") as f:
        json.dump(CONFIG, f, indent=1)
    save_file({k: v.contiguous() for k, v in w.items()}, ROOT + "/model.safetensors", {"format": "pt"})


main()
