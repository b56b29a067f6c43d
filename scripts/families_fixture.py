#!/usr/bin/env python3
"""Makes the fixtures of models with plain attention and a mixture of experts like DeepSeek-V3's.

    python scripts/families_fixture.py [NAME ...]      in the root of the repository (requirements-native.txt)
    CODE=DIRECTORY python scripts/families_fixture.py ling-2   with Ling 2's published code (transformers 4.56.2)

A checkpoint of each family as it is published: the names that save_pretrained writes, the keys of the published
config.json, weights in BF16 but for those that are published in F32, prediction layers under their published names.
Weights are random, norms near 1, router biases mostly negative, so that the scores of experts outside of the chosen
groups count as minus infinity, not 0. Packs: float32 (of GLM with the prediction layer), BF16, and float32 with padding.
The same versions on the same kind of processor give the same bytes.
"""
import json
import os
import re
import shutil
import sys
import tempfile

import golden
import torch
import transformers
from safetensors.torch import load_file, save_file

COMMON = {
    "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02,
    "max_position_embeddings": 256, "num_attention_heads": 4, "num_experts_per_tok": 3, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 96,
}
GLM = COMMON | {
    "first_k_dense_replace": 1, "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 8, "n_shared_experts": 1,
    "norm_topk_prob": True, "routed_scaling_factor": 2.5,
}
EXAONE = {"num_experts": 8, "num_shared_experts": 1, "sliding_window": 7, "sliding_window_pattern": "LLLG"}
ERNIE = {
    "intermediate_size": 128, "moe_capacity": [8, 8, 8], "moe_gate": "topk", "moe_intermediate_size": 32, "moe_k": 3, "moe_layer_interval": 1,
    "moe_layer_start_index": 1, "moe_num_experts": 8, "moe_num_shared_experts": 2, "moe_use_aux_free": True, "num_nextn_predict_layers": 1,
    "rope_theta": 500000.0, "tie_word_embeddings": True, "use_bias": False,
}
ERNIE |= {k: v for k, v in COMMON.items() if k not in {*ERNIE, "num_experts_per_tok"}}
SMALL = {"hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "vocab_size": 64}
SLIDING, FULL = "sliding_attention", "full_attention"
CONFIGS = {
    "glm4-moe": GLM | {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "attention_bias": True, "eos_token_id": [1, 2, 3], "head_dim": 24,
        "n_group": 4, "num_hidden_layers": 3, "num_nextn_predict_layers": 1, "pad_token_id": 1, "partial_rotary_factor": 0.5, "rope_scaling": None,
        "rope_theta": 1000000, "topk_group": 2, "transformers_version": "4.54.0", "use_qk_norm": True,
    },
    "dots1": GLM | {
        "architectures": ["Dots1ForCausalLM"], "model_type": "dots1", "attention_bias": False, "max_window_layers": 3, "moe_layer_freq": 1,
        "n_shared_experts": 2, "num_hidden_layers": 3, "num_key_value_heads": 4, "rope_scaling": None, "rope_theta": 10000000,
        "scoring_func": "noaux_tc", "sliding_window": None, "transformers_version": "4.46.3", "use_sliding_window": False,
    },
    "solar-open": GLM | {
        "architectures": ["SolarOpenForCausalLM"], "model_type": "solar_open", "attention_bias": True, "first_k_dense_replace": 0, "head_dim": 24,
        "max_position_embeddings": 2048, "num_hidden_layers": 3, "partial_rotary_factor": 1.0, "rope_theta": 1000000, "transformers_version": "5.0.0",
        "rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024},
    },
    "hy-v3": COMMON | {
        "architectures": ["HYV3ForCausalLM"], "model_type": "hy_v3", "enable_attention_fp32_softmax": False, "enable_lm_head_fp32": True,
        "enable_moe_fp32_combine": False, "expert_hidden_dim": 32, "first_k_dense_replace": 1, "head_dim": 24, "intermediate_size": 96,
        "moe_intermediate_size": 32, "moe_router_enable_expert_bias": True, "moe_router_use_sigmoid": True, "num_experts": 8,
        "num_hidden_layers": 3, "num_nextn_predict_layers": 1, "num_shared_experts": 1, "output_router_logits": True, "qk_norm": True,
        "rope_parameters": {"rope_theta": 11158840.0, "rope_type": "default"}, "route_norm": True, "router_scaling_factor": 2.826,
    },
    "minimax-m2": COMMON | {
        "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "attn_type_list": [1, 1, 1], "head_dim": 24, "intermediate_size": 32,
        "num_hidden_layers": 3, "num_local_experts": 8, "num_mtp_modules": 3, "qk_norm_type": "per_layer", "rms_norm_eps": 1e-6,
        "rope_theta": 5000000, "rotary_dim": 12, "scoring_func": "sigmoid", "shared_intermediate_size": 0, "transformers_version": "4.46.1", "use_mtp": True,
        "use_qk_norm": True, "use_routing_bias": True,
    },
    "exaone-moe": GLM | EXAONE | {
        "architectures": ["ExaoneMoeForCausalLM"], "model_type": "exaone_moe", "head_dim": 24, "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "n_group": 4, "num_hidden_layers": 4, "num_nextn_predict_layers": 1,
        "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "topk_group": 2,
    },
    "ernie45-moe": ERNIE | {
        "architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "moe_layer_end_index": 2, "num_hidden_layers": 3,
        "rope_scaling": None, "transformers_version": "4.54.0",
    },
    # What no published model has.
    "ernie45-moe-clamp": ERNIE | {
        "architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "moe_layer_end_index": 2, "moe_layer_interval": 2,
        "moe_layer_start_index": 0, "moe_norm_min": 0.6, "num_hidden_layers": 4, "num_nextn_predict_layers": 0, "tie_word_embeddings": False,
    },
    "dots1-window": GLM | {
        "architectures": ["Dots1ForCausalLM"], "model_type": "dots1", "layer_types": [FULL, SLIDING, SLIDING], "num_hidden_layers": 3,
        "rope_theta": 10000000, "sliding_window": 7, "use_sliding_window": False,
    },
    "hy-v3-bias": COMMON | {
        "architectures": ["HYV3ForCausalLM"], "model_type": "hy_v3", "attention_bias": True, "head_dim": 24, "intermediate_size": 96,
        "moe_intermediate_size": 32, "num_experts": 8, "num_hidden_layers": 2, "rope_theta": 10000.0,
    },
    # Of transformers 5.24 (requirements-native-next.txt).
    "sarvam-moe": GLM | SMALL | {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "sarvam_moe", "head_dim": 12, "n_group": 4, "num_experts": 8, "num_hidden_layers": 2,
        "num_shared_experts": 1, "rope_theta": 8000000, "topk_group": 2, "use_qk_norm": True, "use_qkv_bias": True,
    },
    "sarvam-mla": GLM | SMALL | {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "sarvam_mla", "head_dim": 24, "kv_lora_rank": 16, "n_group": 1, "num_experts": 8,
        "num_hidden_layers": 2, "num_key_value_heads": 4, "num_shared_experts": 1, "q_head_dim": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
        "rope_theta": 10000, "topk_group": 1, "v_head_dim": 8, "q_lora_rank": None, "max_position_embeddings": 2048,
        "rope_scaling": {"type": "deepseek_yarn", "factor": 40, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                         "mscale_all_dim": 1.0},
    },
    "ling-2": GLM | SMALL | {
        "architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe", "head_dim": 12, "moe_router_enable_expert_bias": True, "n_group": 4,
        "auto_map": {"AutoConfig": "configuration_bailing_moe_v2.BailingMoeV2Config", "AutoModelForCausalLM": "modeling_bailing_moe_v2.BailingMoeV2ForCausalLM"},
        "num_experts": 8, "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "num_shared_experts": 1, "pad_token_id": 1, "partial_rotary_factor": 0.5,
        "rope_scaling": None, "rope_theta": 600000.0, "score_function": "sigmoid", "topk_group": 2, "use_bias": False, "use_qk_norm": True, "use_qkv_bias": False,
        "use_rmsnorm": True,
    },
}
for key in ("n_routed_experts", "n_shared_experts"):
    del CONFIGS["exaone-moe"][key], CONFIGS["sarvam-moe"][key], CONFIGS["sarvam-mla"][key], CONFIGS["ling-2"][key]
# Weights that are published in float32.
FLOATS = r"e_score_correction_bias$|expert_bias$"
# Names of a prediction layer: what its decoder layer is called, and the weights around it. The last two are copies.
PREDICTION = {
    "glm4_moe": ("model.layers.{}.", ["enorm", "hnorm", "eh_proj", "shared_head.norm", "embed_tokens", "shared_head.head"]),
    "hy_v3": ("model.layers.{}.", ["enorm", "hnorm", "eh_proj", "final_layernorm"]),
    "exaone_moe": ("mtp.layers.0.", ["mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm"]),
    "ernie4_5_moe": ("model.mtp_block.0.", ["model.mtp_emb_norm.0", "model.mtp_hidden_norm.0", "model.mtp_linear_proj.0"]),
}


def value(name, shape, g):
    """A weight: norms near 1, matrices that keep the size of their input, biases of the size of what they join."""
    x = torch.randn(shape, generator=g)
    if name.endswith("norm.weight"):
        return 1 + 0.3 * x
    if re.search(FLOATS, name):
        return 0.3 * x - 0.6 if len(shape) == 1 else 0.1 * x  # of a sigmoid, of ERNIE's softmax
    if len(shape) == 1:
        return 0.3 * x
    return x if "embed_tokens" in name else x * shape[-1] ** -0.5


def saved(config):
    """The names and shapes of what save_pretrained writes."""
    if "auto_map" in config:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module
        known, cls = (get_class_from_dynamic_module(name, os.environ["CODE"]) for name in config["auto_map"].values())
    else:
        known, cls = transformers.CONFIG_MAPPING[config["model_type"]], getattr(transformers, config["architectures"][0])
    with tempfile.TemporaryDirectory() as tmp:
        cls(known.from_dict(dict(config))).save_pretrained(tmp)
        return {k: tuple(t.shape) for k, t in load_file(tmp + "/model.safetensors").items()}


def predicting(config):
    """The names and shapes of a checkpoint with its prediction layer, which is saved as one layer more."""
    if not config.get("num_nextn_predict_layers") or "auto_map" in config:
        return saved(config)
    last, (layer, around) = config["num_hidden_layers"], PREDICTION[config["model_type"]]
    longer = {k: v + [v[0]] if k.endswith("layer_types") else v for k, v in config.items()} | {"num_hidden_layers": last + 1}
    behind, hidden = f"model.layers.{last}.", config["hidden_size"]
    shapes = {layer.format(last) + k.removeprefix(behind) if k.startswith(behind) else k: s for k, s in saved(longer).items()}
    for name in around:
        matrix = name.endswith(("proj", "proj.0", "fc"))
        shape = (hidden, 2 * hidden) if matrix else (config["vocab_size"], hidden) if name in around[4:] else (hidden,)
        shapes[(name if "mtp" in name else layer.format(last) + name) + ".weight"] = shape
    return shapes


def weights(config, seed):
    g, found = torch.Generator().manual_seed(seed), {}
    floats = FLOATS + (r"|mlp\.gate\.weight$" if config["model_type"] in ("ernie4_5_moe", "sarvam_moe", "sarvam_mla") else "")
    for name, shape in sorted(predicting(config).items()):
        x = value(name if "norm.0" not in name else "norm.weight", shape, g)
        found[name] = x if re.search(floats, name) else x.bfloat16()
    for copy, of in {"embed_tokens": "model.embed_tokens", "shared_head.head": "lm_head"}.items():
        for name in [n for n in found if n.startswith("model.layers.") and n.endswith(copy + ".weight")]:
            found[name] = found[of + ".weight"].clone()
    return {k: t.contiguous() for k, t in found.items()}


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    names = sys.argv[1:]
    for seed, (name, config) in enumerate(CONFIGS.items(), 440):
        if names and name not in names:
            continue
        root = f"fixtures/{name}"
        shutil.rmtree(root, ignore_errors=True)
        os.makedirs(root + "/checkpoint")
        with open(root + "/checkpoint/config.json", "w", encoding="utf-8") as f:
            f.write(json.dumps(config, indent=2, sort_keys=True) + "\n")
        save_file(weights(config, seed), root + "/checkpoint/model.safetensors", {"format": "pt"})
        os.chmod(root + "/checkpoint/model.safetensors", 0o644)
        packs = {"f32": ["1x24"], "bf16": ["1x24", "--dtype", "bfloat16"], "padded-f32": ["2x15", "--mask"]}
        if "sarvam" in name or "ling" in name:
            packs = {"f32": ["1x16"], "bf16": ["1x16", "--dtype", "bfloat16"]}
        for pack, flags in packs.items() if not name.endswith(("bias", "clamp", "window")) else [("f32", ["1x24"]), ("bf16", packs["bf16"])]:
            flags = [*flags, *(["--mtp"] if (name, pack) == ("glm4-moe", "f32") else []), "--seed", str(seed)]
            flags += ["--reference", "remote", "--trust-remote-code", "--code", os.environ["CODE"]] if "auto_map" in config else []
            sys.argv[1:] = [root + "/checkpoint", f"{root}/golden-{pack}", "--random", *flags]
            if golden.main():
                sys.exit(2)


main()
