"""Records a trace of MLX: what mlx-lm computes on a checkpoint, as a pack that `dsmoe verify MODEL_DIR PACK` judges.

mlx-lm's model runs the tokens as one prompt, or in steps with its cache, and the results of its modules are taken under
their names, those of its gates as choices and weights. MODEL_DIR is a directory of safetensors that mlx-lm loads; the weights' dtype is what it computes in.

  pip install mlx-lm==0.32.2 mlx==0.32.4 (on Linux "mlx[cpu]==0.32.4")

examples:
  python trace.py model pack --random 1x48
  python trace.py model pack --tokens tokens.json --stages router
  python trace.py model pack --random 1x48 --prefill 24    24 tokens at once, then 24 steps of one

exit status:
  0    PACK is written, complete
  2    it is not: bad input, a missing file, a wrong flag, a version that was not tried
  130  interrupted
"""
import argparse
import hashlib
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile

TRIED = ["0.32.2"]  # versions of mlx-lm with which traces were recorded and judged
if os.path.basename(__file__) in ("mlx.py", "mlx_lm.py", "numpy.py"):
    print(f"trace.py: {__file__} has the name of what it imports: call it trace.py", file=sys.stderr)
    sys.exit(2)
try:
    import mlx.core as mx
    import mlx_lm
    import mlx_lm.models.cache
    import mlx_lm.utils
    import numpy as np
except (ImportError, OSError) as e:
    print(f"trace.py: {' '.join(str(e).split())}: pip install mlx-lm=={TRIED[0]} (on Linux with \"mlx[cpu]\")", file=sys.stderr)
    sys.exit(2)


class Watch:
    """Sees the calls of a model's modules: classes' __call__ is wrapped while it is open, since Python looks it up there."""

    def __init__(self, model, stages):
        self.names = {id(module): name.replace(".block_sparse_moe", ".mlp") for name, module in model.named_modules()}
        self.classes = {type(module) for _, module in model.named_modules()}
        self.selects = {sys.modules[c.__module__] for c in self.classes if hasattr(sys.modules[c.__module__], "group_expert_select")}
        self.stages, self.logits, self.undo = stages, None, []

    def __enter__(self):
        for c in self.classes:
            self.replace(c, "__call__", lambda f: lambda module, *args, **kwargs: self.called(module, f(module, *args, **kwargs), args))
        for module in self.selects:
            self.replace(module, "group_expert_select", lambda f: lambda gates, *args: self.select(f, gates, *args))
        return self

    def replace(self, owner, name, wrap):
        self.undo.append((owner, name, getattr(owner, name), name in vars(owner)))
        setattr(owner, name, wrap(getattr(owner, name)))

    def __exit__(self, *_):
        for owner, name, original, own in self.undo:
            setattr(owner, name, original) if own else delattr(owner, name)

    def select(self, f, gates, *args):
        self.logits = gates
        return f(gates, *args)

    def called(self, module, out, args):
        name = self.names.get(id(module))
        if name and name.endswith(".mlp.gate"):
            self.gate(name, out, args[0])
        elif name and re.fullmatch(r".*\.mlp\.(switch_mlp|experts)", name):  # given choices; its outputs are no sums yet
            self.stages.tokens(name.rpartition(".")[0] + ".gate.topk_idx", values(args[1])[0].astype(np.int64))
        elif name and name.endswith(".indexer") and isinstance(out, mx.array):
            self.stages.keys(name, values(out)[0][:, 0].astype(np.int64))
        elif name and name.endswith(".indexer.rope"):  # of queries [batch, heads, seq, dim], then of keys, which have one head
            stage = name.removesuffix("rope") + ("q" if out.shape[1] > 1 else "k")
            self.stages.keep(stage, *values(mx.contiguous(out.swapaxes(1, 2) if out.shape[1] > 1 else out.squeeze(1))))
        elif name and isinstance(out, mx.array):
            self.stages.module(name, lambda: values(out), lambda: values(args[0]))
        return out

    def gate(self, name, out, given):
        """Takes the logits, which a gate gives or a function of the model is given, and the weights that it gives."""
        self.stages.gate(name, lambda: values(given))
        if isinstance(out, mx.array):
            self.logits = out
        else:
            self.stages.tokens(name + ".topk_weight", *values(out[1]))
        if self.logits is not None:
            self.stages.tokens(name + ".logits", *values(self.logits))
        self.logits = None


def values(t):
    """An array of MLX as numpy's, and the dtype's name where numpy has none."""
    if t.dtype == mx.bfloat16:
        return np.array(t.view(mx.uint16)), "BF16"
    return np.array(t), None


def arguments():
    return parser("MODEL_DIR", "trace.py MODEL_DIR PACK (--random BxT | --tokens FILE) [flags]").parse_args()


def record(a):
    tried(a, "mlx-lm", mlx_lm.__version__, TRIED)
    with Pack(a.pack) as pack:
        try:
            model, config = mlx_lm.utils.load_model(pathlib.Path(a.model))
        except Exception as e:  # of any kind: config, weights, a class of mlx-lm
            raise Trouble(f"{a.model}: mlx-lm does not load it: {reason(e)}") from None
        embedding = next((m for name, m in model.named_modules() if name.endswith("model.embed_tokens")), None)
        if embedding is None:
            raise Trouble(f"{a.model}: mlx-lm's {type(model).__name__} has no model.embed_tokens")
        ids, origin = tokens_of(a, config["vocab_size"])
        batch = Batch(pack, ids, a)
        try:
            with Watch(model, Stages(batch, a.stages)):
                run(model, batch)
        except (RuntimeError, ValueError) as e:  # MLX's own
            cure = ": on a CPU MLX multiplies with experts in float32 only: dsmoe convert MODEL_DIR DST --type f32 first" if "GatherMM" in str(e) else ""
            raise Trouble(f"{a.model}: mlx-lm does not run it: {reason(e).rstrip('.')}{cure}") from None
        batch.finish()
        dtype = str(embedding(mx.array([[0]])).dtype).removeprefix("mlx.core.")
        pack.finish(manifest(a, dtype, origin, batch.entries))
    print(batch.told())


def run(model, batch):
    """Runs the steps; one step needs no cache."""
    cache = None
    for spans in batch.steps():
        _, begin, end = spans[0]
        if end < batch.ids.shape[1] and cache is None:
            cache = mlx_lm.models.cache.make_prompt_cache(model)
        logits = model(mx.array(batch.ids[:, begin:end]), cache=cache)
        mx.eval(logits)
        if batch.prompt <= end < batch.ids.shape[1]:
            batch.ids[:, end] = np.array(mx.argmax(logits[:, -1], axis=-1))


def manifest(a, dtype, origin, steps):
    with open(os.path.join(a.model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    device = "cpu" if mx.default_device() == mx.cpu else "gpu"
    form = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}[dtype]
    m = {"reference": {"kind": "engine", "name": "mlx-lm", "version": f"{mlx_lm.__version__}, mlx {mx.__version__}", "device": device,
                       "recorded": "calls of modules"}, "compute_dtype": dtype, "steps": steps,
         "recorder": {"name": "trace.py", "sha256": "sha256:" + sha256(__file__), "arguments": sys.argv[1:]}, "input": origin, "config": config}
    if a.stages == "router":
        return m | {"partial": "router only"}
    arithmetic = {"activations": {form: form.lower()}, "cache": form.lower(), "attention": ["sdpa"]}
    return m | {"arithmetic": arithmetic | ({"sums": "serial"} if serial() else {})}


def serial():
    """Whether MLX adds up a row term by term, as on a CPU without SIMD of its own."""
    row = np.random.default_rng(0).random((1, 4096), np.float32)
    return mx.sum(mx.array(row), -1).item() == np.add.accumulate(row[0])[-1]


