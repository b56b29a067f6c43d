"""Records a trace of a torch model: what a forward pass computes, as a pack that `dsmoe verify CHECKPOINT PACK` judges.

Forward hooks take the results of modules by their names: of transformers and plain torch (engine="torch"), vLLM ("vllm"),
SGLang ("sglang") and Megatron-LM ("megatron"). No engine is imported; needs torch and numpy. The modules must run one by
one: eager mode, no CUDA graphs, no torch.compile, and one rank: tensor, expert and sequence parallelism of 1. SGLang must
not fuse shared experts into routed ones (--disable-shared-experts-fusion).

Models that take input_ids run here; others run their prompt, once, while the recording is open. Sequences may differ in
length where the engine packs them (vLLM, SGLang).

examples:
  from dsmoe_trace import record, recording    # dsmoe trace-script torch > dsmoe_trace.py
  record(model, "pack", tokens=[[1, 2, 3]])

  model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model  # vLLM, enforce_eager=True, in one process
  with recording(model, "pack", tokens=[[1, 2, 3]], engine="vllm", version=vllm.__version__):
      llm.generate([{"prompt_token_ids": [1, 2, 3]}], SamplingParams(max_tokens=1))

arguments:
  stages="router"        each gate's input, logits, choices and weights alone
  scale="sum"            the engine multiplies the experts' sum with routed_scaling_factor, not their weights (SGLang, older
                         vLLM): the weights that it shows are multiplied with the factor, as the pack's are
  config={...}           config.json of the checkpoint, where model.config is not it
  arithmetic={...}       what is known of the engine's rounding, as the manifests of `trace-script llama` have it; what is
                         known of transformers' models on a CPU is declared without it
"""
import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile

try:
    import numpy as np
    import torch
except (ImportError, OSError) as e:
    if __name__ != "__main__":
        raise
    print(f"trace.py: {' '.join(str(e).split())}: this is a module to import in the engine's own Python, which has torch and numpy", file=sys.stderr)
    sys.exit(2)

# How an engine lays out tokens, and what its modules are called, as patterns of HuggingFace's names.
LAYOUTS = {"torch": "batch", "vllm": "packed", "sglang": "packed", "megatron": "sequence"}  # first axis
NAMES = {"megatron": [
    (r"module\.", ""), (r"embedding\.word_embeddings$", "model.embed_tokens"), (r"output_layer$", "lm_head"),
    (r"decoder\.final_layernorm$", "model.norm"), (r"decoder\.layers\.", "model.layers."), (r"\.self_attention", ".self_attn"),
    (r"\.pre_mlp_layernorm$", ".post_attention_layernorm"), (r"\.mlp\.router$", ".mlp.gate"),
    (r"\.linear_q_proj$", ".q_proj"), (r"\.linear_q_down_proj$", ".q_a_proj"), (r"\.linear_q_up_proj$", ".q_b_proj"),
    (r"\.q_layernorm$", ".q_a_layernorm"), (r"\.linear_kv_down_proj$", ".kv_a_proj_with_mqa"), (r"\.linear_kv_up_proj$", ".kv_b_proj"),
    (r"\.kv_layernorm$", ".kv_a_layernorm"), (r"\.linear_proj$", ".o_proj"), (r"\.linear_fc1$", ".gate_up_proj"), (r"\.linear_fc2$", ".down_proj")]}
FUSED = ("fused_qkv_a_proj", "fused_qkv_a_proj_with_mqa")  # q_a_proj and kv_a_proj_with_mqa in one


def record(model, pack, tokens, **options):
    """Runs a model that takes input_ids [batch, seq], and records it."""
    with recording(model, pack, tokens, **options), torch.no_grad():
        ids = torch.tensor(tokens, device=next(model.parameters()).device)
        model(input_ids=ids, use_cache=False)


@contextlib.contextmanager
def recording(model, pack, tokens, engine="torch", version=None, stages="all", config=None, arithmetic=None, scale="weights"):
    """Records the one forward pass of the tokens that runs while it is open. The pack appears when it is closed."""
    if config is None:
        config = getattr(model, "config", None)
        config = config.to_dict() if hasattr(config, "to_dict") else config
    if not isinstance(config, dict) or "num_hidden_layers" not in config:
        raise Trouble("config: config.json of the checkpoint expected, as a dict")
    if engine not in LAYOUTS:
        raise Trouble(f"engine: {engine!r}: one of {', '.join(LAYOUTS)} expected")
    tokens = [[int(t) for t in row] for row in tokens]
    if not tokens or not all(tokens) or (len({len(row) for row in tokens}) > 1 and LAYOUTS[engine] != "packed"):
        raise Trouble("tokens: lists of ids, of one length, expected" if LAYOUTS[engine] != "packed" else "tokens: lists of ids expected")
    with Pack(pack) as out:
        hooks = Hooks(out, tokens, engine, stages, config)
        hooks.factor = config.get("routed_scaling_factor", 1) if scale == "sum" else 1
        with hooks.installed(model):
            yield
        out.flush("stages")
        out.add("input_ids", hooks.padded(np.concatenate([np.array(row, np.int64) for row in tokens])[:, None])[..., 0])
        if hooks.ragged:
            out.add("attention_mask", (np.arange(max(hooks.lengths)) < np.array(hooks.lengths)[:, None]).astype(np.int64))
        out.flush("inputs")
        names = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
        manifest = {"reference": {"kind": "engine", "name": engine, "version": version or f"torch {torch.__version__}",
                                  "device": hooks.device,
                                  "recorded": "forward hooks, one pass" + (scale == "sum") * "; routed_scaling_factor is in the sum"},
                    "compute_dtype": names[hooks.dtype], "config": json.loads(json.dumps(config, default=str))}
        if hooks.device == "cpu":
            manifest["reference"]["precision"] = {"float32_matmul_precision": float32_precision()}
        if stages == "router":
            manifest["partial"] = "router only"
        if stages == "all" and (arithmetic := arithmetic or hooks.known(model)):
            manifest["arithmetic"] = arithmetic
        out.finish(manifest)
        if unseen := hooks.gates - hooks.routed:
            print(f"dsmoe_trace: no module or router showed the choices of experts of {len(unseen)} gates", file=sys.stderr)


def float32_precision():
    """How precise float32 products of a CPU are, in the words of torch.set_float32_matmul_precision. Newer torch has settings
    of oneDNN beside that, which decide."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if matmul is None:
        return torch.get_float32_matmul_precision()
    return {"bf16": "medium", "tf32": "high"}.get(matmul.fp32_precision, "highest")


class Hooks:
    """Forward hooks of a model, and the stages that they take."""

    def __init__(self, pack, tokens, engine, stages, config):
        self.tokens, self.engine, self.config, self.layout = tokens, engine, config, LAYOUTS[engine]
        self.lengths = [len(row) for row in tokens]
        self.count, self.ragged = sum(self.lengths), len(set(self.lengths)) > 1
        self.stages, self.dtype, self.device = Stages(pack, (len(tokens), max(self.lengths)), stages), torch.float32, "cpu"
        self.factor = 1  # of weights
        self.gates, self.routed = set(), set()  # gates that ran, and gates whose choices were taken

    @contextlib.contextmanager
    def installed(self, model):
        handles, undo = [], []
        for path, module in model.named_modules():
            name = self.named(path)
            if name and "Identity" not in type(module).__name__:
                handles.append(module.register_forward_hook(
                    lambda m, args, kwargs, out, name=name: self.ran(name, args, kwargs, out), with_kwargs=True))
            if name and name.endswith(".mlp.experts"):
                undo += [self.watch(name, o) for o in (module, getattr(module, "router", None)) if hasattr(o, "select_experts")]
        try:
            with torch.no_grad():
                yield
        finally:
            for handle in handles:
                handle.remove()
            for owner in undo:
                del owner.select_experts

    def known(self, model):
        """The arithmetic of transformers' models on a CPU; None of what is not known."""
        attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
        if self.engine != "torch" or self.device != "cpu" or attention not in ("eager", "sdpa"):
            return None
        form = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[self.dtype]
        return {"activations": {form: form.lower()}, "cache": form.lower(), "attention": [attention]}

    def named(self, path):
        """HuggingFace's name of a module; None of one outside the language model."""
        for pattern, to in NAMES.get(self.engine, []):
            path = re.sub(pattern, to, path)
        m = re.search(r"(?:^|\.)((?:model\.(?:layers\.|embed_tokens$|norm$|rotary_emb$)|lm_head$).*)", path)
        return m and m[1]

    def watch(self, name, owner):
        """Sees what a function select_experts of an instance chooses: weights and numbers of experts."""
        choose = owner.select_experts

        def select_experts(*args, **kwargs):
            out = choose(*args, **kwargs)
            self.choices(name.removesuffix("experts") + "gate", out[1], out[0])
            return out

        owner.select_experts = select_experts
        return owner

    def ran(self, name, args, kwargs, out):
        given = [*args, *kwargs.values()]
        role = name.rpartition(".")[2]
        gate = name.rpartition(".")[0] + ".gate"
        if hasattr(out, "topk_ids"):  # SGLang's TopK
            self.choices(gate, out.topk_ids, out.topk_weights)
        elif name.endswith(".mlp.gate"):
            self.gates.add(name)
            self.stages.gate(name, lambda: self.values(name, given[0]))
            self.gate(name, out)
        elif name.endswith(".mlp.experts"):
            chosen = [t for t in given[1:3] if isinstance(t, torch.Tensor) and t.dim() == 2]
            if len(chosen) == 2 and not chosen[0].is_floating_point():  # transformers' experts are given choices, and sum
                self.choices(gate, *chosen)
                self.take(name, out)
        elif role == "embed_tokens":
            self.embedded(name, given[0], out)
        elif name.endswith(".indexer") and isinstance(out, torch.Tensor) and not out.is_floating_point():
            self.stages.keys(name, self.values(name, out)[0].astype(np.int64))
        elif name == "model.rotary_emb":  # tables [batch, seq, dim], or [seq, dim], the same in each sequence
            for part, t in zip((".cos", ".sin"), (out.real, out.imag) if isinstance(out, torch.Tensor) else out):
                self.stages.keep(name + part, *self.numbers(t[0] if t.dim() == 3 else t))
        elif isinstance(out, tuple) and role.endswith("norm") and len(out) == 2:
            self.take(name, out[0])
            self.residual(name, out[1])
        elif isinstance(out, tuple) and re.fullmatch(r"model\.layers\.\d+", name) and len(out) > 1 and isinstance(out[1], torch.Tensor) \
                and out[1].shape == out[0].shape:
            pass  # a pair (hidden, residual): the next norm adds it up
        else:
            self.plain(name, role, given, out[0] if isinstance(out, tuple) else out)

    def plain(self, name, role, given, out):
        """Takes a module's result and input, cut where several of HuggingFace's are in one."""
        if not isinstance(out, torch.Tensor):
            return
        module = name.rpartition(".")[0]
        if role in FUSED:
            rank = self.config["q_lora_rank"]
            self.take(module + ".q_a_proj", out[..., :rank])
            self.take(module + ".kv_a_proj_with_mqa", out[..., rank:])
        elif role == "gate_up_proj":
            half = out.shape[-1] // 2
            self.take(module + ".gate_proj", out[..., :half])
            self.take(module + ".up_proj", out[..., half:])
        elif role in ("lm_head", "kv_b_proj") and out.numel() // out.shape[-1] != self.count:
            return  # logits of the last tokens alone; keys and values of a cache
        else:
            self.take(name, out, given[0] if given and isinstance(given[0], torch.Tensor) else None)

    def take(self, name, out, given=None):
        self.stages.module(name, lambda: self.values(name, out), lambda: self.values(name, given))

    def residual(self, name, summed):
        """Takes the residual stream that a norm has added up: what the layer before gave."""
        if name.endswith(".input_layernorm"):
            layer = int(name.split(".")[2]) - 1
        elif name == "model.norm":
            layer = self.config["num_hidden_layers"] - 1
        else:
            return
        self.take(f"model.layers.{layer}", summed)

    def embedded(self, name, ids, out):
        """Refuses a run of other tokens, or in another order, than the ones given."""
        ids = ids.reshape(-1) if self.layout != "sequence" or ids.shape[0] == len(self.tokens) else ids.T.reshape(-1)
        if ids.tolist() != [t for row in self.tokens for t in row]:
            raise Trouble("the engine ran other tokens, or cut them into several batches: one pass of the given tokens expected")
        self.dtype, self.device = out.dtype, out.device.type
        if self.layout == "sequence":  # Megatron-LM embeds [batch, seq]
            out = out.transpose(0, 1)
        self.take(name, out)

    def gate(self, name, out):
        """Takes what a gate gives: logits, choices with weights, or a table of the weights and one of the choices."""
        if isinstance(out, torch.Tensor):
            out = (out,)
        first, second = out[0], out[1] if len(out) > 1 else None
        if not first.is_floating_point():
            self.choices(name, first, second)
        elif isinstance(second, torch.Tensor) and second.dtype == torch.bool:
            k = int(second.sum(-1).max())
            chosen = second.float().topk(k).indices
            self.choices(name, chosen, first.gather(-1, chosen))
        else:
            self.stages.rows(name + ".logits", *self.rows(first))

    def choices(self, name, chosen, weights):
        if name not in self.routed:
            self.routed.add(name)
            self.stages.rows(name + ".topk_idx", self.rows(chosen.long())[0])
            self.stages.rows(name + ".topk_weight", *self.rows(weights * self.factor))

    def values(self, name, t):
        """A tensor [tokens, width] as numpy's [batch, seq, width], and the dtype's name where numpy has none."""
        array, dtype = self.flat(t)
        if name.endswith(".o_proj") and t.shape[-1] not in self.widths():
            raise Trouble(f"{name}: {t.shape[-1]} channels, not those of all heads: tensor parallelism of 1 expected")
        return self.padded(array), dtype

    def widths(self):
        c = self.config
        heads = c["num_attention_heads"] * (c.get("v_head_dim") or c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"])
        return heads, c["hidden_size"]

    def rows(self, t):
        """A tensor [tokens, width] as numpy's, with rows for padding where stages have them."""
        array, dtype = self.flat(t)
        array = self.padded(array)
        return array.reshape(-1, array.shape[-1]), dtype

    def flat(self, t):
        t = t.detach()
        batch, seq = self.stages.shape
        if self.layout == "sequence":  # [seq, batch, width], or its rows
            t = t.reshape(seq, batch, -1).transpose(0, 1)
        t = t.reshape(-1, t.shape[-1])
        if t.shape[0] != self.count:
            raise Trouble(f"a stage of {t.shape[0]} rows, {self.count} tokens were given: the tokens must run in one pass, without padding")
        return self.numbers(t)

    @staticmethod
    def numbers(t):
        """A tensor as numpy's, and the dtype's name where numpy has none."""
        t = t.detach().cpu().contiguous()
        return (t.view(torch.int16).numpy().view(np.uint16).copy(), "BF16") if t.dtype == torch.bfloat16 else (t.numpy().copy(), None)

    def padded(self, rows):
        """Rows of packed sequences as [batch, seq, width]; shorter sequences end with padding, their last row again."""
        batch, seq = self.stages.shape
        if not self.ragged:
            return rows.reshape(batch, seq, -1)
        ends = np.cumsum(self.lengths)
        return np.stack([rows[np.minimum(np.arange(end - n, end - n + seq), end - 1)] for n, end in zip(self.lengths, ends)])


def arguments():
    raise Trouble("this is a module to import in the engine's own Python:\n\n" + __doc__)


