"""Records a trace of a torch model: what it computes over prompts and decode steps, as a pack that `dsmoe verify CHECKPOINT PACK` judges.

Forward hooks take the results of modules by their names: of transformers and plain torch (engine="torch"), vLLM ("vllm"),
SGLang ("sglang") and Megatron-LM ("megatron"). No engine is imported but by its own class below; needs torch and numpy.
The modules must run one by one: eager mode, no CUDA graphs, no torch.compile. Under tensor parallelism routers alone are
recorded, by rank 0. SGLang must not fuse shared experts into routed ones (--disable-shared-experts-fusion).

Rows are collected by request and position over all steps: prompts of any lengths, chunks, decode steps, a prefix cache. A
stage that lacks rows is left out, and named when the recording closes. The recorder raises nothing while the engine runs.

examples:
  from dsmoe_trace import record, recording    # dsmoe trace-script torch > dsmoe_trace.py
  record(model, "pack", tokens=[[1, 2, 3]])    # one forward pass
  with recording(model, "pack"):               # prompts and decode steps of transformers
      model.generate(ids, attention_mask=mask, max_new_tokens=20)

  LLM(..., enforce_eager=True, worker_extension_cls="dsmoe_trace.VLLMWorker")
  llm.collective_rpc("dsmoe_start", args=("pack",)); llm.generate(...); llm.collective_rpc("dsmoe_stop")
  DSMOE_TRACE=pack DSMOE_STEPS=20 python -m sglang.launch_server ...    # with sglang() below as an entry point

arguments:
  stages="router"        each gate's input, logits, choices and weights alone
  config={...}           config.json of the checkpoint, where neither the model's directory nor model.config has it
  arithmetic={...}       what is known of the engine's rounding, as the manifests of `trace-script llama` have it; what is
                         known of transformers' models on a CPU is declared without it
  tokens=[[...]]         what must run, in this order: the recording is refused if other prompts ran
"""
import argparse
import collections
import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile

try:
    if os.path.basename(__file__) in ("torch.py", "numpy.py"):
        raise ImportError(f"{__file__} has the name of what it imports: call it dsmoe_trace.py")
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
# Models of which dsmoe computes the MLPs alone, by model_type without "_text": the norm before an MLP. Of these nothing else
# is recorded.
BLOCKS = {"afmoe": "pre_mlp_layernorm", "beam": "pre_feedforward_layernorm", "longcat_flash": "post_attention_layernorm.0", "nemotron_h": "norm",
          **dict.fromkeys([
              "kimi_linear", "bailing_hybrid", "mimo_v2_flash", "qwen3_next", "flint", "axk2", "mistral4", "laguna", "hy_v4", "qwen3_5_moe",
              "lara_mini", "dots3_note", "minimax_m3_vl", "kolibri1", "glm5_next", "mistral_large4", "step3p5", "step3p7"],
              "post_attention_layernorm")}
PARTS = [(r"\.language_model\.layers\.", ".layers."), (r"\.(?:word_embeddings|embeddings|language_model\.embed_tokens)$", ".embed_tokens"),
         (r"(?<=\d)\.(?:block_sparse_moe|mixer)(?=$|\.)", ".mlp"), (r"\.mlp\.router$", ".mlp.gate"),
         (r"\.mlp\.shared_expert(?=$|\.)", ".mlp.shared_experts")]  # names of theirs
EAGER = {"torch": "without torch.compile", "vllm": "with enforce_eager=True", "megatron": "without CUDA graphs",
         "sglang": "with --disable-cuda-graph and without --enable-torch-compile"}
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
BLOCK = 8 << 20  # bytes that are copied at a time


def record(model, pack, tokens, **options):
    """Runs a model that takes input_ids [batch, seq], and records it."""
    with recording(model, pack, tokens, **options), torch.no_grad():
        model(input_ids=torch.tensor(tokens, device=next(model.parameters()).device), use_cache=False)


@contextlib.contextmanager
def recording(model, pack, tokens=None, **options):
    """Records what runs while it is open. The pack appears when it is closed."""
    recorder = Recorder(model, pack, tokens, **options)
    try:
        yield recorder
    except BaseException:
        recorder.discard()
        raise
    print(f"dsmoe_trace: {recorder.close()}", file=sys.stderr)


class Recorder:
    """Hooks in a model from its making to close(), or discard(). Of vLLM the model is the worker's model_runner, whose
    batches it knows; a model alone runs the given tokens in one pass."""

    def __init__(self, model, pack, tokens=None, engine="torch", version=None, stages="all", config=None, arithmetic=None):
        if engine not in LAYOUTS:
            raise Trouble(f"engine: {engine!r}: one of {', '.join(LAYOUTS)} expected")
        self.runner = model if hasattr(model, "execute_model") else None
        self.model = model if self.runner is None else getattr(model, "model", None)
        self.engine, self.layout, self.router = engine, LAYOUTS[engine], stages == "router"
        self.whole = config or config_of(self.model)
        self.config = language_config(self.whole)
        if not isinstance(self.config, dict) or "vocab_size" not in self.config:
            raise Trouble("config: config.json of the checkpoint expected, as a dict")
        self.norm = BLOCKS.get((self.config.get("model_type") or self.whole.get("model_type", "")).removesuffix("_text"))
        self.tokens = None if tokens is None else [[int(t) for t in row] for row in tokens]
        if self.tokens is not None and not (self.tokens and all(self.tokens)):
            raise Trouble("tokens: lists of ids expected")
        self.version, self.arithmetic = version or f"torch {torch.__version__}", arithmetic
        self.pack = Pack(pack)
        self.rows, self.spool, self.step = Rows(), Spool(self.pack), None
        self.given, self.prompts, self.scheduled, self.slots = {}, {}, None, {}  # of the step that begins; of vLLM and SGLang
        self.dtype, self.device, self.trouble, self.factors, self.gates = torch.float32, "cpu", None, {}, set()
        self.undo = []
        self.install()

    # -- what runs ----------------------------------------------------------------------------

    def install(self):
        """Installs the hooks. No hook raises: the first trouble is kept for close()."""
        modules = dict(self.model.named_modules())
        if self.norm:
            layers = [m[1] for path, mlp in modules.items() if (m := re.fullmatch(r"model\.layers\.(\d+)\.mlp", self.named(path) or ""))
                      and (hasattr(mlp, "experts") or hasattr(mlp, "down_proj"))]  # a mixer may be attention
            self.of_mlp = re.compile(rf"model\.layers\.({'|'.join(layers)})\.(mlp|{re.escape(self.norm)}|post_(mlp|feedforward)_layernorm)\.")
        root = next((path.rpartition(".")[0] for path in modules if self.named(path) == "model.embed_tokens"), "")
        for module in {id(m): m for m in (self.model, modules[root])}.values():
            self.undo.append(module.register_forward_pre_hook(self.safely(self.enter), with_kwargs=True).remove)
        for path, module in modules.items():
            name = self.named(path)
            if name and "Identity" not in type(module).__name__:
                self.undo.append(module.register_forward_hook(
                    self.safely(functools.partial(self.ran, name)), with_kwargs=True).remove)
            if name and name.endswith(".mlp.experts"):
                self.experts(name, module, modules.get(path.rpartition(".")[0]))
            if name and name.endswith(".mlp.gate") and hasattr(module, "gating"):  # Megatron-LM's router gives no logits
                self.watch(module, "gating", lambda out, *_, name=name: self.take(name + ".logits", out))
            if path.endswith("logits_processor"):  # vLLM and SGLang multiply with lm_head's weight themselves
                self.watch(module, "_get_logits", lambda out, hidden, *_: self.head(out, hidden))
        if self.runner is not None:
            self.watch(self.runner, "execute_model", None, before=self.schedule)
            if hasattr(self.runner, "prepare_inputs"):
                self.watch(self.runner, "prepare_inputs", lambda out, *_: self.given.update(batch=out))
        if self.engine == "sglang":
            with contextlib.suppress(ImportError):
                from sglang.srt.model_executor.forward_batch_info import ForwardBatch
                self.watch(ForwardBatch, "init_new", lambda _, batch, *rest: self.prompts.update(
                    {r.rid: [*r.origin_input_ids, *r.output_ids] for r in getattr(batch, "reqs", ())}))

    def experts(self, name, module, mlp):
        """Sees choices that a function of experts or of their router makes, and where routed_scaling_factor comes in: the
        weights of the pack have it."""
        gate = name.removesuffix("experts") + "gate"
        factor = self.config.get("routed_scaling_factor") or self.config.get("route_scale") or 1
        for owner in (module, getattr(module, "router", None)):
            if hasattr(owner, "select_experts"):
                self.watch(owner, "select_experts", lambda out, *_: self.choices(gate, out[1], out[0]))
        if hasattr(module, "_maybe_apply_routed_scale_to_output"):  # vLLM: not 1 where the sum is scaled
            self.factors[gate] = module.routed_scaling_factor
            self.watch(module, "_maybe_apply_routed_scale_to_output", lambda out, *_: self.module(name, out[1]))
        topk = getattr(mlp, "topk", None)
        topk = getattr(topk, "topk_config", topk)
        if hasattr(topk, "apply_routed_scaling_factor_on_output"):  # SGLang
            self.factors[gate] = 1 if topk.apply_routed_scaling_factor_on_output else factor

    def watch(self, owner, method, after, before=None):
        """Calls functions around a method of an instance: before(*args), after(result, *args)."""
        original, own = getattr(owner, method), vars(owner).get(method)

        @functools.wraps(original)
        def watched(*args, **kwargs):
            given = [*args, *kwargs.values()]
            if before:
                self.safely(before)(*given)
            out = original(*args, **kwargs)
            if after:
                self.safely(after)(out, *given)
            return out

        setattr(owner, method, watched)
        self.undo.append(lambda: delattr(owner, method) if own is None else setattr(owner, method, own))

    def safely(self, f):
        def hook(*args):
            if self.trouble is None:
                try:
                    with torch.no_grad():
                        f(*args)
                except Exception as e:  # of any kind: an engine that it reached would end
                    self.trouble = e
        return hook

    def named(self, path):
        """HuggingFace's name of a module; None of one outside the language model."""
        for pattern, to in NAMES.get(self.engine, []) + (PARTS if self.norm else []):
            path = re.sub(pattern, to, path)
        m = re.search(r"(?:^|\.)((?:model\.(?:layers\.|embed_tokens$|norm$|rotary_emb$)|lm_head$).*)", path)
        return m and m[1]

    def enter(self, module, args, kwargs):
        """Keeps what the model, or its decoder, is given: positions, mask, cache."""
        given = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        self.given.update(given.pop("kwargs", {}), **given)

    def schedule(self, scheduled, *_):
        """Keeps what vLLM's scheduler says of the step that begins: the requests, and the prompts of new ones."""
        self.scheduled = scheduled
        for new in scheduled.scheduled_new_reqs:
            self.prompts[new.req_id] = list(new.prompt_token_ids or [])

    def ran(self, name, module, args, kwargs, out):
        given = [*args, *kwargs.values()]
        role = name.rpartition(".")[2]
        gate = name.rpartition(".")[0] + ".gate"
        if role == "embed_tokens":
            self.embedded(name, given[0], out)
        elif self.step is None:
            pass  # a run without tokens of requests, as vLLM's profiling is
        elif hasattr(out, "topk_ids"):  # SGLang's TopK
            self.choices(gate, out.topk_ids, out.topk_weights)
        elif name.endswith(".mlp.gate"):
            self.gates.add(name)
            if self.router:
                self.take(f"{name.removesuffix('mlp.gate')}{self.norm or 'post_attention_layernorm'}.output", given[0])
            self.gate(name, out)
        elif name.endswith(".mlp.experts"):
            chosen = [t for t in given[1:3] if isinstance(t, torch.Tensor) and t.dim() == 2]
            if len(chosen) == 2 and not chosen[0].is_floating_point():  # transformers' experts are given choices, and sum
                self.choices(gate, *chosen)
                self.module(name, out)
            elif len(given) > 1 and hasattr(given[1], "topk_ids") and isinstance(out, torch.Tensor):
                factor = self.factors.get(gate, 1)  # SGLang scales the sum after this on a CPU; elsewhere its kernels may have
                if factor == 1 or self.device == "cpu":
                    self.module(name, out * factor)
        elif name.endswith(".indexer") and isinstance(out, torch.Tensor) and not out.is_floating_point():
            self.keys(name + ".topk_idx", out)
        elif name == "model.rotary_emb":
            kind = kwargs.get("layer_type")
            name += f".{kind}" if kind else ""
            for part, t in zip((".cos", ".sin"), (out.real, out.imag) if isinstance(out, torch.Tensor) else out):
                self.table(name + part, t)
        elif isinstance(out, tuple) and role.endswith("norm") and len(out) == 2:
            self.module(name, out[0])
            self.residual(name, out[1])
        elif re.fullmatch(r"model\.layers\.\d+", name) and (self.layout == "packed" or isinstance(out, tuple) and len(out) > 1
                                                            and isinstance(out[1], torch.Tensor) and out[1].shape == out[0].shape):
            pass  # without the residual stream, which the next norm adds
        elif getattr(module, "expert_gate", None) is not None:
            pass  # vLLM's Qwen3-Next multiplies with the gate of the shared expert in it
        else:
            self.plain(name, role, given, out[0] if isinstance(out, tuple) else out)

    def plain(self, name, role, given, out):
        """Takes a module's result and input, cut where several of HuggingFace's are in one."""
        if not isinstance(out, torch.Tensor):
            return
        module, first, c = name.rpartition(".")[0], given[0] if given and isinstance(given[0], torch.Tensor) else None, self.config
        if role in ("fused_qkv_a_proj", "fused_qkv_a_proj_with_mqa"):
            self.cut(module, out, {"q_a_proj": c["q_lora_rank"], "kv_a_proj_with_mqa": None})
        elif role == "qkv_proj":
            width = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
            groups = width * (c.get("num_key_value_heads") or c["num_attention_heads"])
            self.cut(module, out, {"q_proj": width * c["num_attention_heads"], "k_proj": groups, "v_proj": groups})
        elif role == "gate_up_proj":
            self.cut(module, out, {"gate_proj": out.shape[-1] // 2, "up_proj": None})
        elif role == "lm_head":
            self.head(out, first)
        elif role == "kv_b_proj" and not self.router:  # of a cache's rows, too
            self.take(name + ".output", out, self.step.matching(first, module + ".kv_a_layernorm"))
        else:
            self.module(name, out, first)

    def cut(self, module, out, widths):
        at, known = 0, sum(w for w in widths.values() if w)
        if known > out.shape[-1]:
            raise Trouble(f"{module}: {out.shape[-1]} channels, not those of all heads: {self.PARALLEL}")
        for role, width in widths.items():
            width = out.shape[-1] - known if width is None else width
            self.module(f"{module}.{role}", out[..., at:at + width])
            at += width

    PARALLEL = "under tensor parallelism stages=\"router\" alone is recorded"

    def module(self, name, out, given=None):
        """Takes a module's output and input, where they are stages."""
        if self.router:
            return
        if name.endswith(".o_proj") and given is not None and self.heads_width() not in (None, given.shape[-1]):
            raise Trouble(f"{name}: {given.shape[-1]} channels, not those of all heads: {self.PARALLEL}")
        if MODULE.fullmatch(name):
            self.take(name + ".output", out)
        if GIVEN.fullmatch(name) and given is not None:
            self.take(name + ".input", given)

    def heads_width(self):
        c = self.config
        if c.get("o_lora_rank"):  # DeepSeek-V4 has a product before o_proj
            return None
        return c["num_attention_heads"] * (c.get("v_head_dim") or c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"])

    def head(self, out, hidden):
        """Takes logits of the rows that went into them, which those of model.norm tell."""
        if self.step is not None and out is not None and not self.router:
            self.take("lm_head.output", out, self.step.matching(hidden, "model.norm"))

    def residual(self, name, summed):
        """Takes the residual stream that a norm has added up: what the layer before gave."""
        if name.endswith(".input_layernorm"):
            self.module(f"model.layers.{int(name.split('.')[2]) - 1}", summed)
        elif name == "model.norm" and not self.norm:
            self.module(f"model.layers.{self.config['num_hidden_layers'] - 1}", summed)

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
            self.take(name + ".logits", first)

    def choices(self, name, chosen, weights):
        if self.step is None or name in self.step.routed:
            return
        self.step.routed.add(name)
        experts = self.config.get("n_routed_experts") or self.config.get("num_experts") or self.config.get("num_local_experts")
        experts = experts and experts + (self.config.get("zero_expert_num") or 0)
        seen = self.step.flat(chosen)
        if experts and seen is not None and ((seen < 0) | (seen >= experts))[self.step.real].any():
            raise Trouble(f"{name}: an expert that is not one of {experts}: shared experts as routed ones, or experts in other places than "
                          "their own: run without fused shared experts (SGLang: --disable-shared-experts-fusion) and without EPLB")
        self.take(name + ".topk_idx", chosen.long())
        self.take(name + ".topk_weight", weights * self.factors.get(name, 1))

    def keys(self, name, chosen):
        """Takes an indexer's choice of keys; -1 stands for keys that causality hides."""
        if self.router:
            return
        chosen = self.step.flat(chosen).long()
        columns, shift = torch.tensor(self.step.columns, device=chosen.device).split(1, -1)
        chosen = torch.where((chosen - shift > columns) | (chosen < shift), -1, chosen - shift)
        self.take(name, torch.nn.functional.pad(chosen, (0, self.config["index_topk"] - chosen.shape[-1]), value=-1))

    def table(self, name, t):
        """Takes RoPE's table [batch or 1, seq, dim]: a row for each position."""
        if self.router or self.layout != "batch":
            return
        batch, seq = self.step.shape
        self.take(name, (t if t.dim() == 3 else t[None]).expand(batch, seq, -1))

    def embedded(self, name, ids, out):
        """Begins a step: which rows of which requests run."""
        self.step, given, self.given = None, self.given, {}
        spans = self.spans(ids, given)
        if not spans:
            return
        number = self.rows.begin(spans)
        self.step = Step(number, self.layout, ids.shape, spans, {s.request: self.rows.requests[s.request].first for s in spans})
        self.dtype, self.device = out.dtype, out.device.type
        self.module(name, out.transpose(0, 1) if self.layout == "sequence" else out)  # Megatron-LM embeds [batch, seq]

    def take(self, name, t, rows=None):
        """Takes a tensor with a row for each token of the step, or for those of the given rows."""
        if self.step is None or t is None or self.norm and not self.of_mlp.match(name):
            return
        if rows is None or rows == self.step.all:
            flat, given, rows = self.step.flat(t), rows, None
            t = t.reshape(len(given), -1) if flat is None and given else flat
            if t is None:
                return self.spool.leave(name, "rows of other tokens")
            if name.endswith(("model.norm.output", "kv_a_layernorm.output")):
                self.step.know(name.removesuffix(".output"), t)
        else:
            t = t.reshape(-1, t.shape[-1])[[i for i, row in enumerate(rows) if row >= 0]]
            rows = [row for row in rows if row >= 0]
        self.spool.write(name, self.step.number, t, rows)

    # -- which rows run -----------------------------------------------------------------------

    def spans(self, ids, given):
        """The rows of each request in the step that begins: Spans, in the order of the rows."""
        if self.layout != "packed":
            return self.batch(ids, given)
        if self.runner is not None:
            return self.vllm(ids, given)
        if "forward_batch" in given:
            return self.sglang(ids, given["forward_batch"])
        if self.tokens is None:
            raise Trouble("which request a row is of is not known: tokens=[[ids], ...], or of vLLM the model_runner, expected")
        at = np.cumsum([0, *map(len, self.tokens)])
        if ids.flatten().tolist() != sum(self.tokens, []):
            raise Trouble("the engine ran other tokens, or cut them into several batches: one pass of the given tokens expected")
        return [Span(n, 0, row, range(begin, end)) for n, (row, begin, end) in enumerate(zip(self.tokens, at, at[1:]))]

    def batch(self, ids, given):
        """Spans of a batch [batch, seq], as transformers and Megatron-LM run it."""
        (batch, seq), ids, first = ids.shape, ids.tolist(), 0
        mask, positions = given.get("attention_mask"), given.get("position_ids")
        cache = next((given[key] for key in ("past_key_values", "cache") if given.get(key) is not None), None)  # "cache" since 5.24
        before = int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else 0
        if cache is not None and not hasattr(cache, "get_seq_length"):
            raise Trouble("past_key_values: not a Cache of transformers: its length is not known")
        context = next((given[key] for key in ("inference_context", "inference_params") if given.get(key) is not None), None)
        if context is not None:  # Megatron-LM's cache
            if not hasattr(context, "sequence_len_offset") or getattr(context, "is_dynamic_batching", bool)():
                raise Trouble("inference_context: which request a row is of is known of a StaticInferenceContext alone")
            before, first = int(context.sequence_len_offset), context.batch_size_offset
        if hasattr(cache, "reorder_cache") and not hasattr(cache.reorder_cache, "__wrapped__"):
            self.watch(cache, "reorder_cache", self.reordered)
        if self.layout == "sequence" or mask is None:
            mask = torch.ones(batch, before + seq)  # Megatron-LM's mask is causal
        if not isinstance(mask, torch.Tensor) or tuple(mask.shape) != (batch, before + seq):
            raise Trouble(f"attention_mask: a mask [batch, {before + seq}] expected; others are not recorded")
        mask = (mask != 0).long().cpu()
        if positions is None:
            positions = torch.arange(before, before + seq)[None]
        if positions.dim() != 2:
            raise Trouble(f"position_ids: shape {list(positions.shape)}: one position for each token expected")
        positions, spans = positions.expand(batch, seq).tolist(), []
        starts = (mask.cumsum(-1) - mask)[:, before:].tolist()  # tokens before each
        for b in range(batch):
            real = [i for i in range(seq) if mask[b, before + i]]
            cuts = [i for i in real[1:] if not positions[b][i] and given.get("attention_mask") is None and not before]  # packed sequences
            for n, (begin, end) in enumerate(zip([0, *cuts], [*cuts, seq])):
                rows = [i for i in real if begin <= i < end]
                if rows:
                    start, position = 0 if n else starts[b][rows[0]], positions[b][rows[0]]
                    if not before and not rows[0] and position > 1:
                        raise Trouble(f"position_ids: a sequence begins at position {position}, and no cache was seen that has the tokens before it")
                    spans.append(Span((b, n) if cuts else b + first, start, [ids[b][i] for i in rows], [b * seq + i for i in rows],
                                      offset=position - start, shift=before + rows[0] - position))
        return [span._replace(request=self.rows.again(span)) for span in spans]

    @staticmethod
    def reordered(_, order, *rest):
        if order.tolist() != list(range(len(order))):
            raise Trouble("beam search: the sequences of the batch change places: record with num_beams=1")

    def vllm(self, ids, given):
        """Spans of vLLM's batch: the scheduler says how many tokens of a request were computed before."""
        s, self.scheduled = self.scheduled, None
        if s is None:
            return []  # a dummy run
        computed = {r.req_id: r.num_computed_tokens for r in s.scheduled_new_reqs}
        computed.update(zip(s.scheduled_cached_reqs.req_ids, s.scheduled_cached_reqs.num_computed_tokens))
        order = given["batch"].req_ids if "batch" in given else [r for r in self.runner.input_batch.req_ids if r in s.num_scheduled_tokens]
        ids, spans, at = ids.tolist(), [], 0
        for request in order:
            n, start, prompt = s.num_scheduled_tokens[request], computed[request], self.prompts.get(request)
            spans.append(Span(request, start, ids[at:at + n], range(at, at + n), bool(prompt) and start >= len(prompt), prompt and prompt[:start]))
            at += n
        return spans

    def sglang(self, ids, batch):
        """Spans of SGLang's batch."""
        ids, decode = ids.tolist(), batch.forward_mode.is_decode()
        counts = [1] * len(batch.seq_lens) if decode else batch.extend_seq_lens.tolist()
        spans, at = [], 0
        for i, n in enumerate(counts):
            start = int(batch.seq_lens[i]) - n
            request = (batch.rids or batch.req_pool_indices.tolist())[i]
            spans.append(Span(request, start, ids[at:at + n], range(at, at + n), decode, self.prompts.get(request, [])[:start]))
            at += n
        return spans

    # -- the end ------------------------------------------------------------------------------

    def remove(self):
        while self.undo:
            self.undo.pop()()

    def discard(self):
        """Removes the hooks and leaves nothing of the pack."""
        self.remove()
        self.spool.close()
        self.pack.__exit__()

    def close(self):
        """Removes the hooks, writes the pack, and returns what to tell: what was recorded and what was left out."""
        self.remove()
        try:
            if self.trouble is not None:
                raise self.trouble if isinstance(self.trouble, Trouble) else Trouble(f"{type(self.trouble).__name__}: {reason(self.trouble)}") \
                    from self.trouble
            if not self.rows.counts:
                raise Trouble(f"embed_tokens was not seen: hooks see eager modules and input_ids alone: run the engine {EAGER[self.engine]}")
            return self.write()
        finally:
            self.discard()

    def write(self):
        layout = Layout(self.rows)
        if self.tokens is not None and [r.tokens[:len(row)] for r, row in zip(layout.requests, self.tokens)] != self.tokens:
            raise Trouble("the engine ran other tokens than the given ones")
        if not layout.mask.all() and "compress_rates" in self.config:
            raise Trouble("of DeepSeek-V4, whose compressors read padding, requests of one length are recorded")
        left = self.spool.finish(layout)
        self.pack.add("input_ids", layout.ids)
        if not layout.mask.all():
            self.pack.add("attention_mask", layout.mask.astype(np.int64))
        self.pack.flush("inputs")
        steps, kinds = layout.steps(), sorted({re.sub(r"^model\.layers\.\d+\.", "", name) for name in left})
        recorded = f"forward hooks, {plural(len(self.rows.counts), 'step')} of {plural(len(layout.requests), 'request')}"
        manifest = {"reference": {"kind": "engine", "name": self.engine, "version": self.version, "device": self.device,
                                  "recorded": recorded + (f"; {', '.join(kinds)} lack rows" if kinds else "")},
                    "compute_dtype": DTYPES[self.dtype], "config": json.loads(json.dumps(self.whole, default=str)), "steps": steps}
        if self.device == "cpu":
            manifest["reference"]["precision"] = {"float32_matmul_precision": float32_precision()}
        if self.dtype != torch.float32 and (kept := self.kept()) is not None:
            manifest["kept_float32"] = kept
        if self.norm:
            norms = filter(None, (re.fullmatch(rf"model\.layers\.(\d+)\.{re.escape(self.norm)}\.output", name) for name in self.pack.tensors))
            manifest["block"] = {"layers": sorted(int(m[1]) for m in norms), "input": self.norm + ".output"}
        if self.router:
            manifest["partial"] = "router only"
        elif arithmetic := self.arithmetic or self.known():
            manifest["arithmetic"] = arithmetic
        self.pack.finish(manifest)
        told = [f"{self.pack.path}: {recorded}, {len(self.pack.tensors)} tensors"]
        told += [f"left out: {kind}: {next(why for name, why in left.items() if name.endswith(kind))}" for kind in kinds]
        told += [f"left out: request {key}: {why}" for key, why in layout.left.items()]
        if unseen := self.gates - {name.removesuffix(".topk_idx") for name in self.spool.stages}:
            told.append(f"no module or router showed the choices of experts of {len(unseen)} gates")
        return "\n".join(told)

    def kept(self):
        """Kinds of routers' weights that the engine keeps in float32, as versions of one model differ in that; None if no router
        has a name that is known."""
        kinds = {"mlp.gate.weight": r".*\.(gate|router|router\.classifier)\.weight", "mlp.gate.e_score_correction_bias": r".*\.(e_score_correction|expert)_bias"}
        seen = collections.defaultdict(set)
        for name, t in (*self.model.named_parameters(), *self.model.named_buffers()):
            for kind, pattern in kinds.items():
                if re.fullmatch(pattern, name):
                    seen[kind].add(t.dtype)
        return [kind for kind in kinds if torch.float32 in seen[kind]] if seen["mlp.gate.weight"] else None

    def known(self):
        """The arithmetic of transformers' models on a CPU; None of what is not known."""
        attention = getattr(getattr(self.model, "config", None), "_attn_implementation", None)
        if self.engine != "torch" or self.device != "cpu" or attention not in ("eager", "sdpa"):
            return None
        form = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[self.dtype]
        return {"activations": {form: form.lower()}, "cache": form.lower(), "attention": [attention]}


def sglang():
    """SGLang's plugin, an entry point of sglang.srt.plugins: in the process that runs the model it records the first
    DSMOE_STEPS steps (default: 1) to the pack DSMOE_TRACE, of DSMOE_STAGES."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    if os.environ.get("DSMOE_TRACE"):
        HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.init_cuda_graphs", started_sglang, HookType.AFTER)


def started_sglang(_, runner, *args, **kwargs):
    """Records a model that SGLang has loaded."""
    try:
        if runner.is_draft_worker or torch.distributed.is_initialized() and torch.distributed.get_rank():
            return
        import sglang as package
        with open(os.path.join(runner.model_config.model_path, "config.json"), encoding="utf-8") as f:
            recorder = Recorder(runner.model, os.environ["DSMOE_TRACE"], engine="sglang", version=package.__version__,
                                stages=os.environ.get("DSMOE_STAGES", "all"), config=json.load(f))
    except Exception as e:
        return print(f"dsmoe_trace: not recorded: {reason(e)}", file=sys.stderr, flush=True)

    def ran(*_):
        if recorder.trouble or len(recorder.rows.counts) >= int(os.environ.get("DSMOE_STEPS", "1")):
            print(f"dsmoe_trace: {told(recorder)}", file=sys.stderr, flush=True)

    recorder.watch(runner, "forward", ran)


class VLLMWorker:
    """vLLM's worker_extension_cls: methods that each worker gets, for collective_rpc. They return what to tell."""

    def dsmoe_start(self, pack, **options):
        if self.rank:
            return f"rank {self.rank}: not recorded"
        import vllm
        self.dsmoe_recorder = None
        try:
            self.dsmoe_recorder = Recorder(self.model_runner, pack, engine="vllm", version=vllm.__version__, **options)
        except Exception as e:
            return f"not recorded: {reason(e)}"
        return f"recording to {pack}"

    def dsmoe_stop(self):
        recorder = getattr(self, "dsmoe_recorder", None)
        return f"rank {self.rank}: not recorded" if recorder is None else told(recorder)


def told(recorder):
    """Closes a recorder in an engine, whose processes end where something is raised; returns what to tell."""
    try:
        return recorder.close()
    except Exception as e:
        return f"not recorded: {reason(e)}"


def config_of(model):
    """config.json of the directory that a model was loaded from, or its config."""
    config = getattr(model, "config", None)
    path = os.path.join(getattr(config, "_name_or_path", None) or "", "config.json")
    if os.path.isfile(path):
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    return config.to_dict() if hasattr(config, "to_dict") else config


def language_config(config):
    """The language model's part of a config."""
    return next((config[key] for key in ("text_config", "language_config") if isinstance(config, dict) and config.get(key)), config)


def float32_precision():
    """How precise float32 products of a CPU are, in the words of torch.set_float32_matmul_precision. Newer torch has settings
    of oneDNN beside that, which decide."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if matmul is None:
        return torch.get_float32_matmul_precision()
    return {"bf16": "medium", "tf32": "high"}.get(matmul.fp32_precision, "highest")


def numbers(t):
    """A tensor as numpy's, and the dtype's name in a pack."""
    t = t.detach()
    t = (t.float() if t.dtype == torch.float64 else t if t.is_floating_point() else t.long()).cpu().contiguous()
    return (t.view(torch.int16).numpy(), "BF16") if t.dtype == torch.bfloat16 else (t.numpy(), Pack.DTYPES.get(str(t.numpy().dtype)))


def plural(n, what):
    return f"{n} {what}{'' if n == 1 else 's'}"


# ---------------------------------------------------------------------------------------------
# Rows of requests over steps

# The rows of a request in a step: the number of its tokens before them; the tokens; where their rows are in the step; whether
# it decodes, if that is known; the tokens before, of which a prefix cache may hold rows; by how much the first one's position
# is larger than start, and by how much keys' numbers in the cache are larger than their columns in the pack.
Span = collections.namedtuple("Span", "request start tokens rows decode prefix offset shift", defaults=[None, None, 0, 0])


class Request:
    """A sequence: its tokens, and for each the step and the row in it that computed it. first is its first position."""

    def __init__(self):
        self.first, self.tokens, self.places, self.phases, self.broken = 0, [], [], [], None


class Rows:
    """Which row of which step computed each token of each request."""

    def __init__(self):
        self.requests, self.counts, self.latest = {}, [], {}  # counts: rows and requests of each step

    def again(self, span):
        """A number for the request of a batch's sequence: another one where other tokens begin."""
        key = self.latest.get(span.request)
        if key is None or not span.start and self.requests[key].tokens != span.tokens[:len(self.requests[key].tokens)]:
            key = self.latest[span.request] = len(self.latest) + len(self.requests)
        return key

    def begin(self, spans):
        """Takes the rows of a step, and returns its number. What a step computes again replaces what was there."""
        step = len(self.counts)
        self.counts.append((sum(len(s.tokens) for s in spans), len(spans)))
        for s in spans:
            r = self.requests.setdefault(s.request, Request())
            if not r.tokens:
                r.first = s.offset
                self.cached(r, s)
            if len(r.tokens) < s.start:
                r.broken = r.broken or f"the rows before position {s.start} were not seen: open the recording before the prompt runs, in eager mode"
                continue
            phase = "prefill" if not s.start else "decode" if s.decode or s.decode is None and len(s.tokens) == 1 else "chunk"
            r.tokens[s.start:], r.places[s.start:] = s.tokens, [(step, row) for row in s.rows]
            r.phases[s.start:] = [(step, phase)] * len(s.tokens)
        return step

    def cached(self, request, span):
        """Takes the rows of a prefix from the request that computed it."""
        donor = span.start and span.prefix and next((r for r in self.requests.values() if r.tokens[:span.start] == span.prefix), None)
        if donor:
            request.tokens, request.places = list(span.prefix), donor.places[:span.start]
            request.phases = [(place[0], "cached") for place in request.places]


class Layout:
    """The pack's [batch, seq]: a sequence for each request, its tokens in the columns of their positions. Padding has the
    row of the next token."""

    def __init__(self, rows):
        self.left = {key: r.broken for key, r in rows.requests.items() if r.broken}
        self.requests = [r for r in rows.requests.values() if r.tokens and not r.broken]
        if not self.requests:
            raise Trouble("no request was recorded from its first token on: " + (next(iter(self.left.values()), "none ran")))
        self.counts, self.seq = rows.counts, max(r.first + len(r.tokens) for r in self.requests)
        if min(r.first for r in self.requests) < 0 or self.seq > 1 << 20:
            raise Trouble("position_ids: positions before 0, or after 2^20")
        columns = [np.clip(np.arange(self.seq) - r.first, 0, len(r.tokens) - 1) for r in self.requests]
        self.ids = np.stack([np.array(r.tokens, np.int64)[at] for r, at in zip(self.requests, columns)])
        self.mask = np.stack([(at == np.arange(self.seq) - r.first) for r, at in zip(self.requests, columns)])
        self.places = np.concatenate([np.array(r.places, np.int64)[at] for r, at in zip(self.requests, columns)])  # [rows, 2]

    def steps(self):
        """The manifest's steps: runs of rows of a request that one step computed."""
        entries = []
        for n, r in enumerate(self.requests):
            for i, (step, phase) in enumerate(r.phases):
                if not i or r.phases[i - 1] != (step, phase):
                    count, requests = self.counts[step]
                    entries.append({"sequence": n, "from": r.first + i, "to": 0, "phase": phase, "step": step, "rows": count, "requests": requests})
                entries[-1]["to"] = r.first + i + 1
        return entries

    def columns(self):
        """For each column the row of a request that has a token there; None where no request has one."""
        return None if not self.mask.any(0).all() else self.mask.argmax(0) * self.seq + np.arange(self.seq)


class Step:
    """The step that runs: how its tensors lie, and what tells rows apart."""

    def __init__(self, number, layout, shape, spans, first):
        self.number, self.layout, self.shape, self.count = number, layout, tuple(shape), int(np.prod(shape))
        self.routed, self.known, self.all = set(), {}, list(range(self.count))
        self.real = sorted(row for s in spans for row in s.rows)
        self.columns = np.zeros((self.count, 2), np.int64)  # of each row: its column in the pack, and the shift of its keys
        for s in spans:
            for n, row in enumerate(s.rows):
                self.columns[row] = first[s.request] + s.start + n, s.shift

    def flat(self, t):
        """A tensor as [rows, ...], in the order of the tokens; None if it has other rows."""
        if self.layout != "packed" and t.dim() > 2:
            if self.layout == "sequence" and t.shape[:2] == self.shape[::-1]:  # [seq, batch, width]
                t = t.transpose(0, 1)
            if t.shape[:2] == self.shape:
                return t.reshape(self.count, *t.shape[2:])
        elif self.layout == "sequence" and t.shape[0] == self.count:
            return t.reshape(*self.shape[::-1], -1).transpose(0, 1).reshape(self.count, -1)
        return t if t.dim() > 1 and t.shape[0] == self.count else None

    def know(self, name, t):
        """Keeps what later products are given, by the role of the module: of one layer at a time."""
        self.known[name.rpartition(".")[2]] = name, numbers(t)[0].copy()

    def matching(self, given, name):
        """The rows that a product is given, told by what the module before it gave: -1 are others. None: they cannot be told."""
        before, known = self.known.get(name.rpartition(".")[2], (None, None))
        if given is None or before != name:
            return None
        flat = self.flat(given)
        if flat is not None and np.array_equal(numbers(flat)[0], known):
            return self.all
        given, rows = numbers(given.reshape(-1, given.shape[-1]))[0], {}
        for row in reversed(range(self.count)):
            rows.setdefault(known[row].tobytes(), []).append(row)
        return [found.pop() if (found := rows.get(row.tobytes())) else -1 for row in given]


class Spool:
    """The rows of stages, in files beside the pack as the steps give them: memory holds a few of them."""

    def __init__(self, pack):
        self.pack, self.files, self.stages, self.left = pack, {}, {}, {}

    def leave(self, name, why):
        self.left.setdefault(name, why)

    def write(self, name, step, t, rows=None):
        """Takes rows of a step: all, or those with the given numbers."""
        if not len(t):
            return
        m = re.match(r"model\.layers\.(\d+)\.", name)
        group = f"layer-{int(m[1]):03}" if m else "rest"
        if group not in self.files:
            self.files[group] = open(os.path.join(self.pack.directory(), group + ".rows"), "w+b")
        file, each = self.files[group], max(1, BLOCK // (t[0].numel() * t.element_size()))
        begin, dtype = file.seek(0, os.SEEK_END), numbers(t[:0])[1]
        stage = self.stages.setdefault(name, (group, dtype, tuple(t.shape[1:]), {}, {}))
        if stage[1:3] != (dtype, tuple(t.shape[1:])):
            return self.leave(name, "its dtype or width changes")
        for at in range(0, len(t), each):
            file.write(memoryview(numbers(t[at:at + each])[0]).cast("B"))
        size = self.size(stage)
        if rows is not None:
            for n, row in enumerate(rows):
                stage[4].setdefault((step, row), begin + n * size)
        elif step in stage[3]:
            self.leave(name, "a step gave it twice")
        else:
            stage[3][step] = begin

    @staticmethod
    def size(stage):
        return int(np.prod(stage[2])) * Pack.SIZES[stage[1]]

    def finish(self, layout):
        """Writes the stages that have all rows into the pack, and returns the others, with the reasons."""
        for group in sorted(self.files):
            for name, stage in self.stages.items():
                if stage[0] == group and name not in self.left:
                    self.put(name, stage, layout)
            self.pack.flush(group)
            self.files.pop(group).close()
            os.remove(os.path.join(self.pack.work, group + ".rows"))
        return self.left

    def put(self, name, stage, layout):
        group, dtype, shape, whole, parts = stage
        base = np.array([whole.get(step, -1) for step in range(len(layout.counts))])
        places, lead = layout.places, (len(layout.requests), layout.seq)
        if name.startswith("model.rotary_emb."):
            columns = layout.columns()
            if columns is None:
                return self.leave(name, "no request has all positions")
            places, lead = places[columns], lead[1:]
        elif ".mlp.gate." in name or name.endswith(".mlp.experts.output"):
            lead = (len(places),)
        offsets = np.where(base[places[:, 0]] < 0, -1, base[places[:, 0]] + places[:, 1] * self.size(stage))
        for i in np.flatnonzero(offsets < 0):
            offsets[i] = parts.get(tuple(places[i].tolist()), -1)
        if missing := len({tuple(p) for p in places[offsets < 0].tolist()}):
            return self.leave(name, f"{missing} of {len({tuple(p) for p in layout.places.tolist()})} rows were not computed, or not as one stage")
        if name.endswith(".topk_idx") and ".indexer" in name:
            keys = np.frombuffer(b"".join(self.read(stage, offsets)), np.int64).reshape(*lead, -1)
            return self.pack.add(name, keys[..., :min(keys.shape[-1], layout.seq)])
        self.pack.put(name, dtype, (*lead, *shape), self.read(stage, offsets))

    def read(self, stage, offsets):
        """Yields the bytes of rows at these offsets, in blocks."""
        file, size = self.files[stage[0]], self.size(stage)
        cuts = np.flatnonzero(np.diff(offsets) != size) + 1
        for begin, end in zip([0, *cuts], [*cuts, len(offsets)]):
            for at in range(begin, end, each := max(1, BLOCK // size)):
                file.seek(offsets[at])
                yield file.read((min(at + each, end) - at) * size)

    def close(self):
        for file in self.files.values():
            file.close()


def arguments():
    raise Trouble("this is a module to import in the engine's own Python:\n\n" + __doc__)

