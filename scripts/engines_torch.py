"""Records a torch model with the shapes that vLLM's DeepSeek-V3 has, for scripts/engines.sh and fixtures/engines: one
matrix for q_a_proj and kv_a_proj_with_mqa and one for gate_proj and up_proj, linear layers that return pairs, norms that
add the residual stream up in place, sequences packed into one batch, experts that choose themselves.

    python scripts/engines_torch.py CHECKPOINT PACK [SEQUENCES]     such as 24,17 (default: 24,24)

Needs torch, safetensors and numpy; the recorder is what `dsmoe trace-script torch` prints, as dsmoe_trace.py in PYTHONPATH."""
import glob
import json
import sys

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

import dsmoe_trace as recorder


class Linear(nn.Module):
    """A linear layer that returns its output and a bias, which is None."""

    def __init__(self, *weights):
        super().__init__()
        self.weight = nn.Parameter(torch.cat(weights), requires_grad=False)

    def forward(self, x):
        return F.linear(x, self.weight), None


class RMSNorm(nn.Module):
    def __init__(self, weight, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight, requires_grad=False), eps

    def forward(self, x, residual=None):
        if residual is not None:
            residual += x
        given = x if residual is None else residual
        normed = self.weight * (given * torch.rsqrt(given.pow(2).mean(-1, keepdim=True) + self.eps))
        return normed if residual is None else (x.copy_(normed), residual)


class MLP(nn.Module):
    def __init__(self, w, name):
        super().__init__()
        self.gate_up_proj = Linear(w[name + "gate_proj.weight"], w[name + "up_proj.weight"])
        self.down_proj = Linear(w[name + "down_proj.weight"])

    def forward(self, x):
        gate, up = self.gate_up_proj(x)[0].chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)[0]


class Router:
    """Chooses experts: their weights, scaled, and their numbers."""

    def __init__(self, c, bias):
        self.c, self.bias = c, bias

    def select_experts(self, hidden_states, router_logits):
        c, scores = self.c, router_logits.sigmoid()
        biased = (scores + self.bias).view(len(scores), c["n_group"], -1)
        groups = biased.topk(2).values.sum(-1).topk(c["topk_group"]).indices
        kept = torch.zeros(biased.shape[:2], dtype=torch.bool).scatter_(1, groups, True)
        ids = biased.masked_fill(~kept[..., None], -torch.inf).flatten(1).topk(c["num_experts_per_tok"]).indices
        weights = scores.gather(1, ids)
        return weights / weights.sum(-1, keepdim=True) * c["routed_scaling_factor"], ids


class Experts(nn.Module):
    def __init__(self, c, w, name):
        super().__init__()
        self.router = Router(c, w[name + "gate.e_score_correction_bias"])
        self.mlps = [MLP(w, f"{name}experts.{e}.") for e in range(c["n_routed_experts"])]  # no modules: one kernel in vLLM

    def forward(self, hidden_states, router_logits):
        weights, ids = self.router.select_experts(hidden_states=hidden_states, router_logits=router_logits)
        out = torch.zeros_like(hidden_states)
        for e, mlp in enumerate(self.mlps):
            rows, place = (ids == e).nonzero(as_tuple=True)
            out[rows] += mlp(hidden_states[rows]) * weights[rows, place, None]
        return out


class MoE(nn.Module):
    def __init__(self, c, w, name):
        super().__init__()
        self.gate = Linear(w[name + "gate.weight"])
        self.experts = Experts(c, w, name)
        self.shared_experts = MLP(w, name + "shared_experts.")

    def forward(self, x):
        routed = self.experts(hidden_states=x, router_logits=self.gate(x)[0])
        return routed + self.shared_experts(x)


class Attention(nn.Module):
    def __init__(self, c, w, name):
        super().__init__()
        self.c = c
        self.fused_qkv_a_proj = Linear(w[name + "q_a_proj.weight"], w[name + "kv_a_proj_with_mqa.weight"])
        self.q_a_layernorm = RMSNorm(w[name + "q_a_layernorm.weight"], 1e-6)
        self.q_b_proj = Linear(w[name + "q_b_proj.weight"])
        self.kv_a_layernorm = RMSNorm(w[name + "kv_a_layernorm.weight"], 1e-6)
        self.kv_b_proj = Linear(w[name + "kv_b_proj.weight"])
        self.o_proj = Linear(w[name + "o_proj.weight"])

    def forward(self, positions, x, starts):
        c, heads = self.c, self.c["num_attention_heads"]
        nope, rope, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
        q, latent, k_pe = self.fused_qkv_a_proj(x)[0].split([c["q_lora_rank"], rank, rope], -1)
        q = self.q_b_proj(self.q_a_layernorm(q))[0].view(len(x), heads, nope + rope)
        k, v = self.kv_b_proj(self.kv_a_layernorm(latent))[0].view(len(x), heads, -1).split([nope, c["v_head_dim"]], -1)
        q = torch.cat([q[..., :nope], self.rotate(positions, q[..., nope:])], -1)
        k = torch.cat([k, self.rotate(positions, k_pe[:, None]).expand(-1, heads, -1)], -1)
        out = [F.scaled_dot_product_attention(*(t[a:b].transpose(0, 1) for t in (q, k, v)), is_causal=True).transpose(0, 1)
               for a, b in zip(starts, starts[1:])]
        return self.o_proj(torch.cat(out).flatten(1))[0]

    def rotate(self, positions, x):
        half = self.c["qk_rope_head_dim"] // 2
        angle = positions[:, None, None] * (1 / (self.c.get("rope_theta") or self.c["rope_parameters"]["rope_theta"]) ** (torch.arange(half) / half))
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], -1).flatten(-2)


class Layer(nn.Module):
    def __init__(self, c, w, name, moe):
        super().__init__()
        self.input_layernorm = RMSNorm(w[name + "input_layernorm.weight"], c["rms_norm_eps"])
        self.self_attn = Attention(c, w, name + "self_attn.")
        self.post_attention_layernorm = RMSNorm(w[name + "post_attention_layernorm.weight"], c["rms_norm_eps"])
        self.mlp = MoE(c, w, name + "mlp.") if moe else MLP(w, name + "mlp.")

    def forward(self, positions, x, residual, starts):
        if residual is None:
            residual, x = x.clone(), self.input_layernorm(x)
        else:
            x, residual = self.input_layernorm(x, residual)
        x, residual = self.post_attention_layernorm(self.self_attn(positions, x, starts), residual)
        return self.mlp(x), residual


class Model(nn.Module):
    def __init__(self, c, w):
        super().__init__()
        self.embed_tokens = nn.Embedding.from_pretrained(w["model.embed_tokens.weight"])
        self.layers = nn.ModuleList(Layer(c, w, f"model.layers.{n}.", n >= c["first_k_dense_replace"]) for n in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(w["model.norm.weight"], c["rms_norm_eps"])


class DeepseekV3(nn.Module):
    def __init__(self, c, w):
        super().__init__()
        self.config, self.model, self.lm_head = c, Model(c, w), Linear(w["lm_head.weight"])

    def forward(self, tokens):
        starts = np.cumsum([0, *map(len, tokens)]).tolist()
        positions = torch.cat([torch.arange(len(row)) for row in tokens])
        x, residual = self.model.embed_tokens(torch.tensor(sum(tokens, []))), None
        for layer in self.model.layers:
            x, residual = layer(positions, x, residual, starts)
        x, _ = self.model.norm(x, residual)
        return self.lm_head(x[[b - 1 for b in starts[1:]]])[0]  # of the last token of each sequence


def main(checkpoint, pack, sequences="24,24"):
    with open(checkpoint + "/config.json", encoding="utf-8") as f:
        config = json.load(f)
    weights = {name: t.float() for file in glob.glob(checkpoint + "/*.safetensors") for name, t in load_file(file).items()}
    model = DeepseekV3(config, weights)
    random = np.random.default_rng(0)
    tokens = [random.integers(config["vocab_size"], size=int(n)).tolist() for n in sequences.split(",")]
    with recorder.recording(model, pack, tokens, engine="vllm", version="a model with its shapes"):
        model(tokens)


if __name__ == "__main__":
    main(*sys.argv[1:])
