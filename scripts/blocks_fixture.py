#!/usr/bin/env python3
"""Writes fixtures/blocks: tiny checkpoints, and what the mixtures of transformers' classes compute with them.

    scripts/blocks_fixture.py [NAME ...]    with transformers 5.24.0 and torch 2.15.0; without names all that it knows

A checkpoint has published names; its weights are BF16 but for those that the class keeps in float32. A pack, one in float32
and one in BF16, has of each mixture what it takes, the gate's logits, choice and weights, the routed sum, the output of the
shared experts, that of the block, and what the family has between and behind them, under DeepSeek-V3's names.

The checkpoints of OLDER have random numbers of a script that is no more: these stay, and their packs alone are recorded. So
does all of ling-1: the code that is published with Ling 1 recorded it, with transformers 4.56.2, which this does not run.
"""
import functools, hashlib, json, os, re, shutil, sys

import torch, transformers
from safetensors.torch import load_file, save_file

L, E = 2, 8
BASE = dict(vocab_size=24, hidden_size=16, intermediate_size=24, moe_intermediate_size=8, num_hidden_layers=L, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=64, num_experts_per_tok=3, bos_token_id=0, eos_token_id=1, pad_token_id=1,
            tie_word_embeddings=False, head_dim=4)
MLA = dict(q_lora_rank=4, kv_lora_rank=4, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=4)
DSA = dict(index_topk=64, index_n_heads=2, index_head_dim=8)
LINEAR = dict(linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=4, linear_value_head_dim=4,
              layer_types=["linear_attention"] * L)
V3 = dict(n_routed_experts=E, n_shared_experts=1, routed_scaling_factor=2.5, norm_topk_prob=True, n_group=4, topk_group=2)
OWN = dict(num_experts=E, shared_expert_intermediate_size=12)
TYPES = dict(mlp_layer_types=["dense"] + ["sparse"] * (L - 1))
DENSE = dict(first_k_dense_replace=1)
VISION = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, head_dim=8, image_size=28, patch_size=14)

# By the name of the fixture: the class, its config, and names of the saved file that published ones have otherwise.
FAMILIES = {
    "mistral4": ("Mistral4ForCausalLM", BASE | V3 | MLA | DENSE, ()),
    "axk2": ("AXK2ForCausalLM", BASE | V3 | MLA | DSA | TYPES | dict(gated_norm_rank=2), ()),
    "laguna": ("LagunaForCausalLM", BASE | OWN | TYPES | dict(moe_routed_scaling_factor=2.5, moe_router_logit_softcapping=1.5), ()),
    "kolibri1": ("Kolibri1ForCausalLM", BASE | OWN | dict(num_hidden_layers=1, sliding_window=5, norm_topk_prob=True), ()),
    "lara-mini": ("LaraMiniForCausalLM", BASE | OWN | LINEAR | dict(sliding_window=5, num_hidden_layers=1,
                  layer_types=["linear_attention"]), ()),
    "dots3-note": ("Dots3NoteForCausalLM", BASE | V3 | MLA | DSA | DENSE | dict(shared_experts_intermediate_size=12, head_dim=8,
                   use_sliding_window=False), ()),
    "beam": ("BeamForCausalLM", BASE | TYPES | dict(num_experts=E, n_group=4, topk_group=2, sliding_window=5), ()),
    "step3p7": ("Step3p7ForConditionalGeneration", dict(text_config=BASE | TYPES | dict(n_routed_experts=E, share_expert_dim=12,
                moe_router_scaling_factor=3.0, swiglu_limits=[None, 0.2], swiglu_limits_shared=[None, 0.3], sliding_window=5),
                vision_config=dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, mlp_ratio=1.0, image_size=28)), ()),
    "minimax-m3": ("MiniMaxM3VLForCausalLM", BASE | TYPES | dict(num_local_experts=E, intermediate_size=8, dense_intermediate_size=24,
                   shared_intermediate_size=12, rotary_dim=4, swiglu_limit=0.5, layer_types=["full_attention"] * L), ()),
    "glm5-next": ("Glm5NextForConditionalGeneration", dict(text_config=BASE | V3 | MLA | DSA | TYPES | dict(qk_rope_head_dim=0,
                  linear_head_dim=4, linear_num_heads=2, hc_mult=2, index_kpool=4, swiglu_limit=0.5, layer_types=["linear_attention"] * L),
                  vision_config=dict(depth=1, hidden_size=16, num_heads=2, out_hidden_size=16, intermediate_size=8,
                                     projection_intermediate_size=8, patch_size=2, temporal_patch_size=1)), ()),
    "qwen3-5": ("Qwen3_5MoeForCausalLM", BASE | OWN | LINEAR | dict(num_hidden_layers=1, layer_types=["linear_attention"]), ()),
    "hy-v4": ("HYV4ForCausalLM", BASE | V3 | MLA | DSA | TYPES | dict(hc_mult=2, swiglu_limit=0.5, indexer_types=["full"] * L),
              ((r"(mlp.*)\.linear_gate\.", r"\1.gate_proj."),)),
    "mistral-large4": ("MistralLarge4ForConditionalGeneration", dict(text_config=BASE | V3 | MLA | DSA | DENSE, vision_config=VISION), ()),
    "nemotron-h": ("NemotronHForCausalLM", {k: v for k, v in (BASE | V3).items() if k != "num_hidden_layers"} | dict(
        layers_block_type=["full_attention", "moe"], moe_latent_size=12, moe_shared_expert_intermediate_size=12, mamba_num_heads=2,
        mamba_head_dim=4, n_groups=2, ssm_state_size=4, chunk_size=8), ()),
    "longcat-flash": ("LongcatFlashForCausalLM", dict(num_layers=1, moe_topk=4, zero_expert_num=4, ffn_hidden_size=16,
        expert_ffn_hidden_size=8) | {k: v for k, v in (BASE | MLA | V3).items() if k not in (
            "num_hidden_layers", "num_experts_per_tok", "n_group", "topk_group")}, ()),
}

# Fixtures whose checkpoints stay, and the class.
OLDER = {"afmoe": "AfmoeForCausalLM", "bailing-hybrid": "BailingHybridForCausalLM", "flint": "FlintForCausalLM",
         "kimi-linear": "KimiLinearForCausalLM", "mimo-v2-flash": "MiMoV2FlashForCausalLM", "qwen3-next": "Qwen3NextForCausalLM"}

# The deviation and the mean of the router biases: 0 in place of -inf shows nothing as long as what is chosen by is above 0.
BIASES = {"axk2": (0.2, 0.3), "glm5-next": (0.4, -0.9), "longcat-flash": (0.05, 0.0)}


def sha(path):
    with open(path, "rb") as f:
        return "sha256:" + hashlib.sha256(f.read()).hexdigest()


def first(module, *names):
    """The submodule of the first of these names that there is, and the name."""
    for name in names:
        m = functools.reduce(lambda m, part: getattr(m, part, None), name.split("."), module)
        if isinstance(m, torch.nn.Module) and not isinstance(m, (torch.nn.Identity, torch.nn.ModuleList)):
            return name, m
    return None, None


def checkpoint(cls, config, renamed, biases, path):
    """Saves a model of the class with random weights."""
    short = cls._from_config(config, dtype=torch.bfloat16).state_dict()
    kept = {n for n, p in short.items() if p.dtype == torch.float32}
    model = cls._from_config(config, dtype=torch.float32)
    state = model.state_dict()
    for n, t in state.items():
        if not t.is_floating_point() or n.endswith(("A_log", "dt_bias", ".D", "inv_freq")):
            continue
        r = torch.randn(t.shape)
        if n.endswith(("correction_bias", "expert_bias")):
            t.copy_(biases[0] * r + biases[1])
        else:
            t.copy_((t != 0).any() + 0.2 * r if t.dim() < 2 else r if "embed" in n else
                    r * (1.5 if n.endswith(("gate.weight", "classifier.weight")) else 1.0) * t.shape[-1] ** -0.5)
        t.copy_(t if n in kept else t.bfloat16().float())
    model.load_state_dict(state)
    for n, p in [*model.named_parameters(), *model.named_buffers()]:
        if p.is_floating_point() and n in state and n not in kept:
            p.data = p.data.bfloat16()
    model.save_pretrained(path)
    if os.path.exists(os.path.join(path, "generation_config.json")):
        os.remove(os.path.join(path, "generation_config.json"))
    if renamed:
        file = os.path.join(path, "model.safetensors")
        names = {n: functools.reduce(lambda n, r: re.sub(*r, n), renamed, n) for n in load_file(file)}
        save_file({names[n]: t for n, t in load_file(file).items()}, file, {"format": "pt"})


def record(cls, path, dtype, seed, pack, tokens):
    """Writes a pack of the mixtures of the checkpoint at path."""
    model, info = cls.from_pretrained(path, output_loading_info=True, attn_implementation="eager", experts_implementation="eager",
                                      dtype=getattr(torch, dtype))
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    ids = torch.randint(2, model.config.get_text_config().vocab_size, (1, tokens), generator=torch.Generator().manual_seed(seed))
    stages, ran, norm = {"input_ids": ids}, [], None

    def put(key):
        return lambda m, a, o: stages.__setitem__(key, (o[0] if isinstance(o, tuple) else o).detach().clone())

    def choices(p):
        return lambda m, a, o: stages.update({f"{p}.gate.{k}": t.detach().clone()
                                              for k, t in zip(("logits", "topk_weight", "topk_idx"), o)})
    decoder = first(model, "model.language_model.layers.0", "model.layers.0")[0].rsplit(".", 1)[0]
    for l, layer in enumerate(model.get_submodule(decoder)):
        block = first(layer, "mlp", "mixer")[1]
        gate = first(block, "gate", "router")[1]
        if gate is None or not hasattr(block, "experts"):
            continue
        p = f"model.layers.{l}.mlp"
        ran.append(l)
        norm, before = first(layer, "pre_mlp_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm.0",
                             "post_attention_layernorm", "norm")
        before.register_forward_hook(put(f"model.layers.{l}.{norm}.output"))
        gate.register_forward_hook(choices(p))
        block.experts.register_forward_hook(put(f"{p}.experts.output"))
        block.register_forward_hook(put(f"{p}.output"))
        shared = first(block, "shared_experts", "shared_expert")[1]
        if shared is not None:
            shared.register_forward_hook(put(f"{p}.shared_experts.output"))
        for of, name, prefix in [(block, n, p) for n in ("shared_expert_gate", "fc1_latent_proj", "fc2_latent_proj")] + [
                (layer, n, f"model.layers.{l}") for n in ("post_mlp_layernorm", "post_feedforward_layernorm")]:
            if first(of, name)[1] is not None:
                getattr(of, name).register_forward_hook(put(f"{prefix}.{name}.output"))
    with torch.no_grad():
        model.eval()(input_ids=ids, use_cache=False)
    os.makedirs(pack)
    files, tensors = {}, {}
    for name, keys in [("inputs", ["input_ids"])] + [(f"layer-{l:03}", [k for k in stages if k.startswith(f"model.layers.{l}.")])
                                                     for l in ran]:
        file = name + ".safetensors"
        save_file({k: stages[k].contiguous() for k in keys}, os.path.join(pack, file))
        files[file] = sha(os.path.join(pack, file))
        for k in keys:
            kind = {torch.int64: "I64", torch.float32: "F32", torch.bfloat16: "BF16"}[stages[k].dtype]
            tensors[k] = dict(file=file, dtype=kind, shape=list(stages[k].shape))
    with open(os.path.join(path, "config.json")) as f:
        config = json.load(f)
    manifest = dict(
        format="golden/1", mode="eval", compute_dtype=dtype, made_by="from_pretrained(checkpoint, dtype)",
        input=dict(kind="random", seed=seed), seed=seed,
        reference=dict(model=cls.__name__, kind="transformers native", transformers=transformers.__version__, torch=torch.__version__,
                       attn_implementation="eager", experts_implementation="eager", device="cpu", threads=1),
        partial="the mixtures of experts alone: attention is not computed", block=dict(layers=ran, input=norm + ".output"),
        config=config, files=files, tensors=tensors,
        checkpoint={n: sha(os.path.join(path, n)) for n in sorted(os.listdir(path))})
    with open(os.path.join(pack, "manifest.json"), "w") as f:
        json.dump(manifest, f, separators=(",", ":"))
        f.write("\n")


def main(names):
    torch.set_num_threads(1)
    for name in names or [*FAMILIES, *OLDER]:
        home = os.path.join(os.path.dirname(__file__), "..", "fixtures", "blocks", name)
        cls, tokens = getattr(transformers, FAMILIES[name][0] if name in FAMILIES else OLDER[name]), 24
        if name in FAMILIES:
            _, config, renamed = FAMILIES[name]
            tokens = 16
            torch.manual_seed(1)
            shutil.rmtree(home, ignore_errors=True)
            checkpoint(cls, cls.config_class(**json.loads(json.dumps(config))), renamed, BIASES.get(name, (0.4, 0.0)),
                       os.path.join(home, "checkpoint"))
        for dtype, short in (("float32", "f32"), ("bfloat16", "bf16")):
            pack = os.path.join(home, "golden-" + short)
            shutil.rmtree(pack, ignore_errors=True)
            record(cls, os.path.join(home, "checkpoint"), dtype, 1, pack, tokens)
        size = sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(home) for f in files)
        print(f"{name}: {size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
