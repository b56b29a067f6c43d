#!/usr/bin/env python3
"""Makes fixtures/forms: one model in every stored form with scales, packed by the libraries themselves.

    forms_fixture.py        writes fixtures/forms/*; run it in the root of the repository

All checkpoints hold the same numbers, which every form can hold: codes 0, 1, 2, 3, 4, 6 and their
negatives, times a power of two for 32 columns of a row. bf16 is what the golden pack was made of.

scales-*.safetensors hold single matrices with scales that no model should have (subnormal, zero, huge,
negative, NaN) and, as NAME.numbers, what the library makes of them in BF16 (F32 of `.f32`).

  int4, int4-zeros, int4-channel, nvfp4, mxfp4    compressed-tensors packs and unpacks
  mixed, float, int8, mxfp8, mxfp6, packed-2 …    likewise: one checkpoint of several forms, and matrices of each
  nvfp4-modelopt                                  ModelOpt's NVFP4QTensor
  float-modelopt, mxfp8-modelopt                  of float and mxfp8: ModelOpt's FP8QTensor and MXFP8QTensor
  block                                           of int8: INT8 in blocks, whose formula torch computes
  fp8-e8m0, fp4                                   transformers' Fp8Dequantize unpacks; packed here
  awq                                             AutoRound's WQLinear_GEMM, which is AutoAWQ's, packs and unpacks
  gptq, gptq-v2                                   AutoRound's QuantLinear, with zeros less 1 and as they are
  gptq-desc-act                                   that unpacks; packed here as in AutoGPTQ 0.7.1, qlinear_cuda.py

The versions are those of scripts/requirements-forms.txt.
"""
import json
import os
import re
import shutil
import sys
from types import SimpleNamespace as Namespace
from unittest.mock import MagicMock, patch

import torch
from safetensors.torch import save_file

from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from modelopt.torch.quantization.qtensor.fp8_tensor import FP8QTensor
from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

sys.modules["datasets"] = MagicMock()  # of AutoRound, for calibration
from auto_round.export.export_to_awq.utils import WQLinear_GEMM, dequantize_gemm
from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp

ROOT = "fixtures/forms"
CODES = torch.tensor([0, 1, 2, 3, 4, 6, -1, -2, -3, -4, -6], dtype=torch.float32)
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
    "eos_token_id": 1, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02,
    "intermediate_size": 64, "kv_lora_rank": 32, "max_position_embeddings": 128, "model_type": "kimi_k2",
    "moe_intermediate_size": 32, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 4, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 2, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "num_nextn_predict_layers": 0, "q_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 50000.0,
    "routed_scaling_factor": 1.5, "scoring_func": "sigmoid", "tie_word_embeddings": False, "topk_group": 1,
    "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 16, "vocab_size": 64,
}


def model(r):
    """The plain weights, and for each matrix that is quantised its codes and scales."""
    c, plain, codes = CONFIG, {}, {}

    def matrix(name, rows, cols):
        k = torch.randint(-6, -2, (rows, cols // 32), generator=r)
        q = CODES[torch.randint(len(CODES), (rows, cols), generator=r)]
        codes[name] = (q, 2.0 ** k)
        plain[name + ".weight"] = (q.view(rows, -1, 32) * 2.0 ** k[..., None]).view(rows, cols).bfloat16()

    def mlp(name, inner):
        matrix(name + ".gate_proj", inner, 64)
        matrix(name + ".up_proj", inner, 64)
        matrix(name + ".down_proj", 64, inner)

    def vector(name, n, shift=1.0):
        plain[name] = (shift + 0.1 * torch.randn(n, generator=r)).bfloat16()

    plain["model.embed_tokens.weight"] = torch.randn(64, 64, generator=r).bfloat16()
    for l in range(c["num_hidden_layers"]):
        at = f"model.layers.{l}."
        vector(at + "input_layernorm.weight", 64)
        vector(at + "post_attention_layernorm.weight", 64)
        a = at + "self_attn."
        matrix(a + "q_a_proj", 32, 64)
        vector(a + "q_a_layernorm.weight", 32)
        matrix(a + "q_b_proj", 48, 32)
        matrix(a + "kv_a_proj_with_mqa", 40, 64)
        vector(a + "kv_a_layernorm.weight", 32)
        matrix(a + "kv_b_proj", 64, 32)
        matrix(a + "o_proj", 64, 32)
        if l < c["first_k_dense_replace"]:
            mlp(at + "mlp", 64)
            continue
        plain[at + "mlp.gate.weight"] = (0.2 * torch.randn(4, 64, generator=r)).bfloat16()
        plain[at + "mlp.gate.e_score_correction_bias"] = 0.1 * torch.randn(4, generator=r)
        for e in range(4):
            mlp(f"{at}mlp.experts.{e}", 32)
        mlp(at + "mlp.shared_experts", 32)
    vector("model.norm.weight", 64)
    plain["lm_head.weight"] = torch.randn(64, 64, generator=r).bfloat16()
    return plain, codes


def scheme(bits, kind, strategy, group, symmetric=True):
    args = QuantizationArgs(num_bits=bits, type=kind, strategy=strategy, group_size=group, symmetric=symmetric)
    return QuantizationScheme(targets=["Linear"], weights=args)


SCHEMES = {
    "int4": ("pack-quantized", scheme(4, "int", "group", 32)),
    "int4-zeros": ("pack-quantized", scheme(4, "int", "group", 32, False)),
    "int4-channel": ("pack-quantized", scheme(4, "int", "channel", None)),
    "nvfp4": ("nvfp4-pack-quantized", scheme(4, "float", "tensor_group", 16)),
    "mxfp4": ("mxfp4-pack-quantized", scheme(4, "float", "group", 32)),
    "mxfp6": ("mxfp6-pack-quantized", scheme(6, "float", "group", 32)),
    "mxfp8": ("mxfp8-quantized", scheme(8, "float", "group", 32)),
    "float-row": ("float-quantized", scheme(8, "float", "channel", None)),
    "float-tensor": ("float-quantized", scheme(8, "float", "tensor", None)),
    "int8-row": ("int-quantized", scheme(8, "int", "channel", None)),
    "int8-zeros": ("int-quantized", scheme(8, "int", "channel", None, False)),
}
BITS = (2, 3, 5, 6, 7, 8)
for bits in BITS:
    SCHEMES[f"packed-{bits}"] = ("pack-quantized", scheme(bits, "int", "group", 32))
    SCHEMES[f"packed-{bits}-zeros"] = ("pack-quantized", scheme(bits, "int", "group", 32, False))

# The forms of the modules of the checkpoint mixed.
MIXED = {r"re:.*self_attn\..*": "float-row", r"re:.*layers\.0\.mlp\..*": "mxfp8", r"re:.*shared_experts\..*": "int8-row",
         r"re:.*experts\..*\.(gate|up)_proj": "packed-8", r"re:.*experts\..*\.down_proj": "packed-5"}


def compress(form, weight, scale, **more):
    """What compressed-tensors stores of a matrix, and what it makes of that."""
    name, s = SCHEMES[form]
    compressor = BaseCompressor.get_value_from_registry(name)
    stored = compressor.compress({"weight": weight, "weight_scale": scale, **more}, s)
    return stored, unpack(form, stored)


def unpack(form, stored):
    name, s = SCHEMES[form]
    return BaseCompressor.get_value_from_registry(name).decompress(dict(stored), s)["weight"]


def pack_fp4(q):
    """E2M1 codes of the numbers q, two to a byte, the lower half first."""
    index = (q.unsqueeze(-1) == E2M1).float().argmax(-1).to(torch.uint8)
    return index[:, 0::2] | index[:, 1::2] << 4


def e8m0(scale):
    return scale.to(torch.float8_e8m0fnu)


def fine_grained(codes, scale):
    return Fp8Dequantize(None)._dequantize_one(codes, scale, torch.bfloat16)


GPTQ = {"gptq": (qlinear_torch_zp, 32), "gptq-v2": (qlinear_torch, 32), "gptq-desc-act": (qlinear_torch_zp, 16)}


def gptq(form, rows, cols, group, t):
    """What AutoRound makes of the tensors t of a matrix; it cannot have more rows than columns."""
    if rows > cols:
        parts = [gptq(form, min(cols, rows - at), cols, group, {
            k: v if k == "g_idx" else v[:, at // 8:(at + cols) // 8] if k == "qzeros" else v[:, at:at + cols]
            for k, v in t.items()}) for at in range(0, rows, cols)]
        return torch.cat(parts)
    layer = GPTQ[form][0].QuantLinear(4, group, cols, rows, False)
    for name, value in t.items():
        layer.register_buffer(name, value)
    with patch("torch.matmul", lambda _, weights: weights):
        return layer(torch.zeros(cols, cols, dtype=t["scales"].dtype)).t()


def nibbles(codes):
    """Codes packed in words of I32 along the last dimension, the first in the lowest bits."""
    return (codes.long().view(*codes.shape[:-1], -1, 8) << torch.arange(0, 32, 4)).sum(-1).to(torch.int32)


def transposed(form, q, s):
    """stored for AWQ and GPTQ."""
    (rows, cols), group = q.shape, GPTQ.get(form, (None, 32))[1]
    weight = (q.view(rows, -1, 32) * s[..., None]).view(q.shape)
    s = s.repeat_interleave(32 // group, 1).t().half()  # [groups, rows]
    zeros = torch.arange(s.numel()).view(s.shape) % 4 + 6
    linear = Namespace(weight=weight, bias=None, in_features=cols, out_features=rows)
    linear.weight.data = weight
    if form == "awq":
        x = WQLinear_GEMM.from_linear(linear, 4, 32, scales=s, zeros=zeros, device="cpu")
        t = {"qweight": x.qweight, "qzeros": x.qzeros, "scales": x.scales}
        return t, dequantize_gemm(x.qweight, x.qzeros, x.scales, 4, 32).t()
    if form == "gptq-desc-act":  # columns of one scale, in two groups at random; groups in an order of their own, with other zeros
        order = torch.randperm(32, generator=torch.Generator().manual_seed(rows + cols)).repeat(cols // 32) % 2
        order = order + torch.arange(cols) // 32 * 2
        place = torch.arange(len(s)).view(-1, 2).t().flip(0).flatten()  # of 4 groups: 1, 3, 0, 2
        zeros = (torch.arange(len(s))[:, None] + torch.arange(rows)) % 4 + 6
        s, order = s[place], place.argsort()[order]
        codes = (q + zeros[order].t()).to(torch.int32)
        t = {"qweight": nibbles(codes).t().contiguous(), "qzeros": nibbles(zeros - 1), "scales": s,
             "g_idx": order.to(torch.int32)}
        return t, gptq(form, rows, cols, group, t)
    x = GPTQ[form][0].QuantLinear(4, 32, cols, rows, False, g_idx=True)
    x.device = "cpu"
    x.pack(linear, s.t(), zeros.t(), device="cpu")
    t = {"qweight": x.qweight, "qzeros": x.qzeros, "scales": x.scales, "g_idx": x.g_idx}
    return t, gptq(form, rows, cols, group, t)


def stored(form, q, s):
    """The tensors of a matrix of codes q and scales s, by the end of their names, and their numbers."""
    if form == "awq" or form in GPTQ:
        return transposed(form, q, s)
    w = (q.view(len(q), -1, 32) * s[..., None]).view(q.shape)
    if form == "fp8-e8m0":
        scale = e8m0(torch.full((1, 1), 2.0**-6))
        codes = (w * 64).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale_inv": scale}, fine_grained(codes, scale)
    if form == "fp4":
        packed, scale = pack_fp4(q).view(torch.int8), e8m0(s)
        return {"weight": packed, "scale": scale}, fine_grained(packed, scale)
    if form == "nvfp4-modelopt":
        second = torch.tensor(0.25)
        scale = (s.repeat_interleave(2, 1) / second).to(torch.float8_e4m3fn)
        t, _, _ = NVFP4QTensor.quantize(w, 16, scale, second)
        numbers = t.dequantize(torch.bfloat16, scale=scale, double_scale=second, block_sizes={-1: 16})
        return {"weight": t._quantized_data, "weight_scale": scale, "weight_scale_2": second,
                "input_scale": torch.tensor(0.5)}, numbers
    if form.endswith("-row"):  # one scale for each row: codes are up to 48
        return compress(form, w.bfloat16(), torch.full((len(q), 1), 2.0**-6).bfloat16())
    if form == "int4-zeros":
        zeros = torch.arange(q.shape[0] * s.shape[1]).view(s.shape) % 3 - 1
        zeros = torch.where((q.view(*s.shape, 32) + zeros[..., None]).abs().amax(-1) > 7, 0, zeros).to(torch.int8)
        return compress(form, w.bfloat16(), s.bfloat16(), weight_zero_point=zeros)
    if form == "nvfp4":
        globe = torch.tensor([4.0])
        return compress(form, w, s.repeat_interleave(2, 1) * globe, weight_global_scale=globe)
    return compress(form, w.bfloat16(), s if form.startswith("mxfp") else s.bfloat16())


def quantization(form, ignore):
    if form in ("fp8-e8m0", "fp4"):
        return {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "activation_scheme": "dynamic",
                "weight_block_size": [128, 128]}
    if form == "nvfp4-modelopt":
        return {"quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt"}, "ignore": ignore}
    if form == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
                "modules_to_not_convert": [m.split(".")[-1] for m in PLAIN] + ["lm_head"]}
    if form in GPTQ:
        return {"quant_method": "gptq", "bits": 4, "group_size": GPTQ[form][1], "desc_act": form == "gptq-desc-act",
                "sym": False, "lm_head": False, "checkpoint_format": "gptq_v2" if form == "gptq-v2" else "gptq",
                "pack_dtype": "int32", "dynamic": {"-:" + m: {} for m in PLAIN}}
    if form == "mixed":
        groups = {f"group_{i}": {"format": SCHEMES[of][0], "targets": [target], "input_activations": None,
                                 "weights": json.loads(SCHEMES[of][1].weights.model_dump_json())}
                  for i, (target, of) in enumerate(MIXED.items())}
        return {"quant_method": "compressed-tensors", "format": "mixed-precision", "quantization_status": "compressed",
                "config_groups": groups, "ignore": ["lm_head"], "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    name, s = SCHEMES[form]
    weights = json.loads(s.weights.model_dump_json())
    return {"quant_method": "compressed-tensors", "format": name, "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
            "ignore": ignore}


# modules whose rows AWQ and GPTQ do not pack
PLAIN = [r".*self_attn.q_b_proj", r".*self_attn.kv_a_proj_with_mqa"]


def write(path, config, shards):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    with open(path + "/config.json", "w") as f:
        json.dump(config, f, indent=1)
    shards = [{k: v.contiguous() for k, v in s.items()} for s in shards if s]
    if len(shards) == 1:
        save_file(shards[0], path + "/model.safetensors", {"format": "pt"})
        return
    index = {}
    for i, s in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):06}.safetensors"
        save_file(s, f"{path}/{file}", {"format": "pt"})
        index.update({name: file for name in s})
    with open(path + "/model.safetensors.index.json", "w") as f:
        json.dump({"metadata": {"total_size": sum(t.nbytes for s in shards for t in s.values())}, "weight_map": index}, f, indent=1)


def checkpoints():
    plain, codes = model(torch.Generator().manual_seed(31))
    write(ROOT + "/bf16", CONFIG, [plain])
    ignore = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
    for form in ("fp8-e8m0", "fp4", "int4", "int4-zeros", "nvfp4", "mxfp4", "nvfp4-modelopt", "awq", *GPTQ, "mixed"):
        first, scales = dict(plain), {}
        for name, (q, s) in codes.items():
            kind = form
            if form == "awq" or form in GPTQ:
                if any(re.match(m, name) for m in PLAIN):
                    continue
            elif form == "mixed":
                kind = next(of for target, of in MIXED.items() if re.match(target[3:], name))
            elif ".experts." not in name:
                if form == "fp4":
                    kind = "fp8-e8m0"
                elif form != "fp8-e8m0":
                    continue
            tensors, numbers = stored(kind, q, s)
            weight = first.pop(name + ".weight")
            assert numbers.bfloat16().equal(weight), (form, name)
            for end, t in tensors.items():
                if form == "fp4" and end == "weight_scale_inv":
                    end = "scale"
                (first if "packed" in end or end in ("weight", "qweight") else scales)[f"{name}.{end}"] = t
        q = quantization(form, ["lm_head", "model.layers.*.self_attn*", "*shared_experts*", "model.layers.0.mlp*"]
                         if form == "nvfp4-modelopt" else ignore)
        if form == "mixed":  # with scales of activations and of the cache
            for l in range(CONFIG["num_hidden_layers"]):
                at = f"model.layers.{l}.self_attn."
                scales |= {at + "k_scale": torch.tensor(0.5), at + "v_scale": torch.tensor(0.25),
                           at + "o_proj.input_scale": torch.tensor([0.125]), at + "attn.q_scale": torch.tensor(1.5)}
        config = dict(CONFIG, quantization_config=q)
        if form == "int4":  # as Kimi-K2.5 is published
            config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
                      "text_config": config, "dtype": "bfloat16"}
            first, scales = ({"language_model." + k: v for k, v in t.items()} for t in (first, scales))
        write(f"{ROOT}/{form}", config, [first, scales])


def scales(r, kind, rows, width):
    """Scales that no model should have, and some that it should."""
    if kind == "e8m0":
        return torch.randint(256, (rows, width), generator=r).to(torch.uint8).index_fill(1, torch.tensor([0]), 0) \
            .index_fill(1, torch.tensor([1]), 254).view(torch.float8_e8m0fnu)
    s = torch.randn(rows, width, generator=r) * 10.0 ** torch.randint(-38, 38, (rows, width), generator=r)
    odd = [0.0, -0.0, 1e-40, -1e-40, 3e38, float("inf"), float("nan"), -1.0, 1.0, 9.2e-41]
    s.view(-1)[: len(odd)] = torch.tensor(odd)[: s.numel()]
    return s.to({"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "e4m3": torch.float8_e4m3fn}[kind])


def hostile():
    r = torch.Generator().manual_seed(7)
    files = {m: {} for m in ("fp8", "pack-quantized", "nvfp4-pack-quantized", "nvfp4", "mxfp4-pack-quantized", "channel", "zeros",
                             "awq", "gptq", "gptq-v2", "gptq-row", "gptq-desc-act")}

    def add(method, name, tensors, numbers):
        for end, t in tensors.items():
            files[method][f"{name}.{end}"] = t.contiguous().clone()
        files[method][name + ".numbers"] = numbers.contiguous()

    noise = lambda rows, cols: torch.randint(256, (rows, cols), generator=r).to(torch.uint8)
    for kind in ("e8m0", "bf16", "f32"):
        q, s = noise(40, 96).view(torch.float8_e4m3fn), scales(r, kind, 5, 6)
        add("fp8", "fp8-" + kind, {"weight": q, "weight_scale_inv": s}, fine_grained(q, s))
    q, s = noise(20, 64).view(torch.int8), scales(r, "e8m0", 20, 4)
    add("fp8", "fp4", {"weight": q, "scale": s}, fine_grained(q, s))
    for kind in ("bf16", "f16", "f32"):
        words = noise(20, 64).view(torch.int32)
        t = {"weight_packed": words, "weight_scale": scales(r, kind, 20, 4), "weight_shape": torch.tensor([20, 128])}
        add("pack-quantized", "int4-" + kind, t, unpack("int4", t))
        t = dict(t, weight_zero_point=noise(3, 16).view(torch.int32))
        add("zeros", "zeros-" + kind, t, unpack("int4-zeros", t))
    t = {"weight_packed": noise(20, 64).view(torch.int32), "weight_scale": scales(r, "bf16", 20, 1),
         "weight_shape": torch.tensor([20, 128])}
    add("channel", "channel", t, unpack("int4-channel", t))
    for globe in (448.0, 3e-39, 1e38, float("nan")):
        t = {"weight_packed": noise(20, 64), "weight_scale": scales(r, "e4m3", 20, 8),
             "weight_global_scale": torch.tensor([globe])}
        add("nvfp4-pack-quantized", f"nvfp4-{globe:g}", t, unpack("nvfp4", t))
    for second in (2.0**-9, 1.1e-39, 3e38, -0.7):
        q, s, two = noise(20, 64), scales(r, "e4m3", 20, 8), torch.tensor(second)
        numbers = NVFP4QTensor(torch.Size([20, 128]), torch.bfloat16, q).dequantize(
            torch.bfloat16, scale=s, double_scale=two, block_sizes={-1: 16})
        add("nvfp4", f"nvfp4-{second:g}", {"weight": q, "weight_scale": s, "weight_scale_2": two}, numbers)
    q, s = noise(20, 64), noise(20, 4).clamp(max=254)  # of 255 compressed-tensors makes infinity, OCP NaN
    t = {"weight_packed": q, "weight_scale": s}
    add("mxfp4-pack-quantized", "mxfp4", t, unpack("mxfp4", t))
    for kind in ("bf16", "f16", "f32"):
        for method in ("awq", "gptq", "gptq-v2", "gptq-row", "gptq-desc-act"):
            form, group = method.replace("-row", ""), 96 if method == "gptq-row" else 16
            s = scales(r, kind, 96 // group, 40)
            if kind == "f16":
                s = torch.randint(-2**15, 2**15, s.shape, generator=r).to(torch.int16).view(torch.float16)
            zeros = torch.randint(16 if form in ("awq", "gptq-v2") else 15, s.shape, generator=r)
            t = {"qweight": noise(12, 160).view(torch.int32), "qzeros": nibbles(zeros), "scales": s}
            if form == "awq":
                t["qweight"] = noise(96, 20).view(torch.int32)
                numbers = dequantize_gemm(t["qweight"], t["qzeros"], s, 4, group).t()
            else:
                t["g_idx"] = (torch.arange(96) // group).to(torch.int32)
                if method == "gptq-desc-act":
                    t["g_idx"] = t["g_idx"][torch.randperm(96, generator=r)]
                numbers = gptq(form, 40, 96, group, t)
            add(method, f"{method}-{kind}", t, numbers)
    others(r, files, add, noise)
    for method, tensors in files.items():
        save_file(tensors, f"{ROOT}/scales-{method}.safetensors")


def others(r, files, add, noise):
    """What hostile adds of the forms that came later."""
    files |= {name: {} for name in ("float", "int8", "mxfp8", "mxfp6", *(f"packed-{bits}" for bits in BITS))}
    e4m3 = lambda: noise(20, 96).view(torch.float8_e4m3fn)
    for kind in ("bf16", "f16", "f32"):
        t = {"weight": e4m3(), "weight_scale": scales(r, kind, 20, 1)}
        add("float", "row-" + kind, t, unpack("float-row", t))
        add("float", "flat-" + kind, dict(t, weight_scale=t["weight_scale"][:, 0]), unpack("float-row", t))
        t = {"weight": noise(20, 96).view(torch.int8), "weight_scale": scales(r, kind, 20, 1)}
        add("int8", "row-" + kind, t, unpack("int8-row", t))
        t = dict(t, weight_zero_point=noise(20, 1).view(torch.int8))
        add("int8", "zeros-" + kind, t, unpack("int8-zeros", t))
        for bits in BITS:
            form = f"packed-{bits}"
            t = {"weight_packed": noise(20, 16 * bits).view(torch.int32), "weight_scale": scales(r, kind, 20, 4),
                 "weight_shape": torch.tensor([20, 128])}
            add(form, f"{form}-{kind}", t, unpack(form, t))
            t = dict(t, weight_zero_point=noise((20 * bits + 31) // 32, 16).view(torch.int32))
            add(form, f"{form}-zeros-{kind}", t, unpack(form + "-zeros", t))
    for scale in (0.75, 3e38, -1e-40, 0.0):
        t = {"weight": e4m3(), "weight_scale": torch.tensor([scale])}
        add("float", f"tensor-{scale:g}", t, unpack("float-tensor", t))
        q, s = e4m3(), torch.tensor(scale)
        numbers = FP8QTensor(q.shape, torch.bfloat16, q).dequantize(torch.bfloat16, scale=s)
        if scale == 0.75:  # of others ModelOpt rounds the scale to BF16 first
            add("float", f"float-modelopt-{scale:g}", {"weight": q, "weight_scale": s}, numbers)
    q, s = noise(24, 96).view(torch.int8), scales(r, "f32", 3, 6)
    numbers = q.float() * s.repeat_interleave(8, 0).repeat_interleave(16, 1)
    add("int8", "block", {"weight": q, "weight_scale_inv": s}, numbers)
    s = noise(20, 3).clamp(max=254)
    t = {"weight": e4m3(), "weight_scale": s}
    add("mxfp8", "mxfp8", t, unpack("mxfp8", t))
    numbers = MXFP8QTensor(t["weight"].shape, torch.float32, t["weight"]).dequantize(torch.float32, scale=s)
    add("mxfp8", "mxfp8-modelopt", t, numbers)
    t = {"weight_packed": noise(20, 72), "weight_scale": s}
    add("mxfp6", "mxfp6", t, unpack("mxfp6", t))


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.makedirs(ROOT, exist_ok=True)
    checkpoints()
    hostile()
