#!/usr/bin/env python3
"""Makes fixtures/glm4-moe-lite-coherent/checkpoint: a legal checkpoint whose float32 sums drift as far as is known.

Channel 0 of every embedding is near 1 and all others near 0, as massive activations are in trained models. Row 0 of
kv_a_proj reads that channel alone, and the value rows of kv_b_proj read that latent, of each head with a size and a
sign of the head's own. o_proj is positive. So the 384 terms of a row of o_proj are of one sign and size per head: the partial sums
go far from 0, and each of them is rounded. All rows and tokens are alike in that, so that nothing averages out.

  python scripts/coherent_fixture.py fixtures/glm4-moe-lite-coherent/checkpoint   (requirements-native.txt)
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file

SEED = 502  # of 1 to 1400 one whose partial sums are far larger than their sums
CONFIG = {
    "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "vocab_size": 96, "hidden_size": 64,
    "intermediate_size": 96, "moe_intermediate_size": 16, "num_hidden_layers": 2, "mlp_layer_types": ["dense", "sparse"],
    "num_attention_heads": 6, "num_key_value_heads": 6, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 64, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.8, "hidden_act": "silu",
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_interleave": True,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.02, "tie_word_embeddings": False, "dtype": "bfloat16",
    "transformers_version": "5.23.0",
}


def weights():
    c, g = CONFIG, torch.Generator().manual_seed(SEED)
    hidden, heads, nope, rope, v = (c[k] for k in ("hidden_size", "num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))

    def normal(*shape):
        return torch.randn(*shape, generator=g)

    def near_one(*shape):
        return 1 + 0.3 * normal(*shape)

    def mlp(name, width):
        return {f"{name}.gate_proj.weight": 0.1 * normal(width, hidden), f"{name}.up_proj.weight": 0.1 * normal(width, hidden),
                f"{name}.down_proj.weight": 0.1 * normal(hidden, width)}
    w = {"model.embed_tokens.weight": 0.02 * normal(c["vocab_size"], hidden), "model.norm.weight": torch.ones(hidden),
         "lm_head.weight": 0.1 * normal(c["vocab_size"], hidden)}
    w["model.embed_tokens.weight"][:, 0] += 1
    for i, kind in enumerate(c["mlp_layer_types"]):
        layer = f"model.layers.{i}"
        attention = f"{layer}.self_attn"
        latents, values = 0.1 * normal(c["kv_lora_rank"] + rope, hidden), 0.1 * normal(heads, nope + v, c["kv_lora_rank"])
        latents[0] = 0
        latents[0, 0] = 1
        values[:, nope:, 0] = normal(heads, 1) * near_one(heads, v)
        w |= {
            f"{layer}.input_layernorm.weight": torch.ones(hidden), f"{layer}.post_attention_layernorm.weight": torch.ones(hidden),
            f"{attention}.q_a_proj.weight": 0.1 * normal(c["q_lora_rank"], hidden), f"{attention}.q_a_layernorm.weight": torch.ones(c["q_lora_rank"]),
            f"{attention}.q_b_proj.weight": 0.1 * normal(heads * (nope + rope), c["q_lora_rank"]),
            f"{attention}.kv_a_proj_with_mqa.weight": latents, f"{attention}.kv_a_layernorm.weight": torch.ones(c["kv_lora_rank"]),
            f"{attention}.kv_b_proj.weight": values.flatten(0, 1), f"{attention}.o_proj.weight": 0.03 * near_one(hidden, heads * v),
        }
        if kind == "dense":
            w |= mlp(f"{layer}.mlp", c["intermediate_size"])
            continue
        router = normal(c["n_routed_experts"], hidden)
        router[:, 0] = 0  # else all tokens choose alike
        w |= {f"{layer}.mlp.gate.weight": router,
              f"{layer}.mlp.gate.e_score_correction_bias": 0.01 * normal(c["n_routed_experts"])}
        for e in range(c["n_routed_experts"]):
            w |= mlp(f"{layer}.mlp.experts.{e}", c["moe_intermediate_size"])
        w |= mlp(f"{layer}.mlp.shared_experts", c["moe_intermediate_size"])
    return {n: (x if n.endswith("bias") else x.bfloat16()).contiguous() for n, x in w.items()}


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    path = sys.argv[1]
    os.makedirs(path)
    file = os.path.join(path, "model.safetensors")
    save_file(weights(), file, {"format": "pt"})
    os.chmod(file, 0o644)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(CONFIG, f, indent=2)
        f.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
