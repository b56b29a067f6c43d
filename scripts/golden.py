#!/usr/bin/env python3
"""Records a golden pack: every stage's tensors while the reference Python runs a checkpoint.

`dsmoe verify CHECKPOINT PACK` then holds its own computation against them. The reference is
the checkpoint's own code (auto_map in config.json, "remote") or transformers' classes
("native"). It is built without memory and runs as it is, on the CPU or one GPU, with eager
attention and eager experts (or --attn sdpa, --experts grouped_mm); hooks give each module its weights
when it is its turn, so that never more than one decoder layer is in memory, and of eager experts only
the expert in use. Each expert that no token chose is run, too, on some rows of its layer's input: see
--no-probes.

for transformers' classes (V2, V3, V3.2, V4, GLM-4.5 to GLM-5, A.X-K1, dots.llm1, Solar-Open, Hy3, MiniMax-M2, K-EXAONE, ERNIE-4.5, and with
5.24.0, see scripts/requirements-native-next.txt, Sarvam;
Python 3.10 or later):
  pip install torch==2.8.0 transformers==5.23.0 safetensors==0.8.0 numpy==1.26.4
for the published code of Ling 2 (--reference remote --code DIRECTORY; Python 3.10 or later):
  pip install torch==2.8.0 transformers==4.56.2 safetensors==0.8.0 numpy==1.26.4
for the published code of the first DeepSeekMoE and of DeepSeek-VL2 (Python 3.8 to 3.12; VL2's needs einops, too):
  pip install torch==2.3.1 transformers==4.39.3 safetensors==0.4.3 numpy==1.26.4

examples:
  python golden.py model pack --random 2x17 --mask
  python golden.py model pack --reference remote --trust-remote-code --text "Once upon a time"
  python golden.py model pack --random 1x16 --dtype bfloat16 --repeat
  python golden.py model pack --random 1x12 --layers 0,3-5,60 --seed 9
  python golden.py model pack --random 2x17 --train --override aux_loss_alpha=0.05 \\
      --reference remote --trust-remote-code

exit status:
  0    PACK is written, complete
  2    it is not: bad input, a missing file, a wrong flag, a version that was not tried
  130  interrupted
"""
import argparse
import contextlib
import copy
import fnmatch
import functools
import hashlib
import inspect
import json
import math
import os
import platform
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # what is not in CHECKPOINT is not fetched

CLEAR = "\r\x1b[K" if sys.stderr.isatty() else ""  # empties the line of the progress


def draw(line):
    """Puts a line in the place of the last one, on a terminal: as much of it as fits, since a longer one stays there."""
    if CLEAR:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80  # some terminals do not know theirs
        print(CLEAR + line[:columns - 1], end="", file=sys.stderr, flush=True)


def announce(doing):
    """Shows what is being done, on a terminal."""
    draw(f"golden.py: {doing}")


def interrupt(*_):
    """Ends the run; later signals are ignored, so that what is left of the pack is removed: a terminal signals dsmoe and
    its script, and dsmoe passes it on."""
    for s in SIGNALS:
        signal.signal(s, signal.SIG_IGN)
    raise KeyboardInterrupt


def interrupted():
    """Tells the user, and returns the exit status."""
    print(f"{CLEAR}golden.py: interrupted: nothing is left of the pack", file=sys.stderr, flush=True)
    return 130


def handle(handler):
    """Has the signals that end the run call a handler, but for those that are ignored, as nohup has it."""
    for s in SIGNALS:
        if signal.getsignal(s) != signal.SIG_IGN:
            signal.signal(s, handler)


def follow():
    """Ends the run when dsmoe, which holds the other end of standard input, is gone, and removes its copy of this script."""
    os.read(0, 1)
    shutil.rmtree(os.path.dirname(__file__), ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


SIGNALS = [getattr(signal, s) for s in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, s)]
if __name__ == "__main__":
    handle(lambda *_: os._exit(interrupted()))  # what torch imports may swallow an exception
    if os.environ.get("DSMOE_HOLDS_STDIN"):
        threading.Thread(target=follow, daemon=True).start()
    announce("loading torch and transformers")

try:
    import torch
    import torch.nn.functional as F
    import transformers
    from safetensors import safe_open
    from safetensors.torch import save_file
    from torch.overrides import TorchFunctionMode
except (ImportError, OSError) as e:  # OSError: a library of the system that torch needs
    native, _, published = re.findall("pip install .*", __doc__)
    print(f"{CLEAR}golden.py: {' '.join(str(e).split())}: {native}, or for the published code of the first DeepSeekMoE {published}", file=sys.stderr)
    sys.exit(2)

# (torch, transformers) with which packs were made and verified.
TRIED = {"remote": [("2.3.1", "4.39.3")], "native": [("2.8.0", "5.23.0"), ("2.15.0", "5.24.0")], "BailingMoeV2ForCausalLM": [("2.8.0", "4.56.2")]}
# Classes whose modules have the names below.
KNOWN = {
    "remote": ["DeepseekForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "BailingMoeV2ForCausalLM"],
    "native": ["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM", "AXK1ForCausalLM", "DeepseekV32ForCausalLM",
               "GlmMoeDsaForCausalLM", "DeepseekV4ForCausalLM", "Glm4MoeForCausalLM", "Dots1ForCausalLM", "SolarOpenForCausalLM", "HYV3ForCausalLM",
               "MiniMaxM2ForCausalLM", "ExaoneMoeForCausalLM", "Ernie4_5_MoeForCausalLM"],
}
# Classes of which dsmoe computes the mixtures and dense MLPs alone, --block: the norm before an MLP, and the norms behind it.
BLOCKS = {"AfmoeForCausalLM": ("pre_mlp_layernorm", "post_mlp_layernorm"),
          "Kolibri1ForCausalLM": ("post_attention_layernorm", "post_mlp_layernorm"),
          "BeamForCausalLM": ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
          **dict.fromkeys([
              "KimiLinearForCausalLM", "BailingHybridForCausalLM", "MiMoV2FlashForCausalLM", "Qwen3NextForCausalLM", "FlintForCausalLM",
              "AXK2ForCausalLM", "Mistral4ForCausalLM", "LagunaForCausalLM", "HYV4ForCausalLM", "Qwen3_5MoeForCausalLM", "LaraMiniForCausalLM",
              "Dots3NoteForCausalLM", "MiniMaxM3VLForCausalLM", "Glm5NextForConditionalGeneration", "MistralLarge4ForConditionalGeneration",
              "Step3p7ForConditionalGeneration"], ("post_attention_layernorm",)),
          "LongcatFlashForCausalLM": ("post_attention_layernorm.0",), "NemotronHForCausalLM": ("norm",)}
# Models whose mixtures dsmoe computes and that have no class in transformers.
CLASSLESS = {"BailingMoeForCausalLM": "Ling 1's code is published with its weights, for transformers 4",
             "Step3p5ForCausalLM": "transformers has Step3p7ForConditionalGeneration alone, with a vision tower"}
KNOWN["native"] += BLOCKS
PUBLISHED = {"BailingMoeV3ForCausalLM": "BailingHybridForCausalLM"}  # other names of classes in published files
INDEXED = ["DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "DeepseekV4ForCausalLM"]  # of these, classes with an indexer
PREDICTING = ["DeepseekV3ForCausalLM", "Glm4MoeForCausalLM"]  # of these, classes whose prediction layers MtpModel runs
RENAMED = ["deepseek_v4", "hy_v3", "minimax_m2", "exaone_moe", "ernie4_5_moe", "sarvam_moe"]  # model_types whose files have other names than the modules

# Models around a language model, by model_type: the key of its configuration, how its tensors' names begin, and the
# reference that it has.
AROUND = {"kimi_k25": ("text_config", "language_model.", None), "deepseek_vl_v2": ("language_config", "language.", "remote")}

# Where weights are, as transformers decides it: the first of these that is there.
WEIGHTS = ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
FP8 = torch.float8_e4m3fn
FP4 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])  # E2M1, two to a byte of I8
FP4_GROUP = 32  # elements of a row that share a scale

# Kinds of stages: names without "model.layers.N.", the number of an expert being *.
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa",
               "kv_a_layernorm", "kv_b_proj", "o_proj", "q_norm", "k_norm", "q_a_norm", "kv_proj", "kv_norm", "o_a_proj", "qkv_proj"]
# What modules of Ling are called here, by their names in its code.
LING = {"word_embeddings": "embed_tokens", "attention": "self_attn", "query_key_value": "qkv_proj", "query_layernorm": "q_norm",
        "key_layernorm": "k_norm", "dense": "o_proj"}
INDEXER = ["wq_b", "wk", "k_norm", "weights_proj"]
COMPRESSOR = ["kv_proj", "gate_proj", "kv_norm"]
HEAD = ["model.norm.output", "lm_head.output"]
STREAMS = ["model.hc_head.pre", "model.hc_head.output"]  # before HEAD, where the residual is several streams
STANDARD = [
    "model.embed_tokens.output", *STREAMS, *HEAD, "loss",
    *(f"{hc}.{s}" for hc in ("attn_hc", "ffn_hc") for s in ("pre", "post", "comb", "collapsed")), "ffn_hc.input",
    "input_layernorm.output", *(f"self_attn.{p}.output" for p in PROJECTIONS), "self_attn.o_proj.input", "self_attn.o_a_proj.input",
    *(f"self_attn.indexer.{m}.output" for m in INDEXER), *(f"self_attn.indexer.{s}" for s in ("q", "k", "scores", "topk_idx")),
    *(f"self_attn.compressor.{m}.output" for m in COMPRESSOR), "self_attn.compressor.entries",
    *(f"self_attn.compressor.indexer.{m}.output" for m in ("q_b_proj", *COMPRESSOR, "scorer.weights_proj")),
    *(f"self_attn.compressor.indexer.{s}" for s in ("q", "entries", "scores", "topk_idx")),
    *(f"self_attn.{s}" for s in ("query", "kv", "context")), "self_attn.output", "pre_mlp_layernorm.output", "post_attention_layernorm.output", "post_attention_layernorm.0.output", "norm.output",
    "mlp.gate.logits", "mlp.gate.topk_idx", "mlp.shared_expert_gate.output", "mlp.fc1_latent_proj.output", "mlp.fc2_latent_proj.output", "post_mlp_layernorm.output",
    "mlp.gate.topk_weight", "mlp.gate.aux_loss", "mlp.experts.output", "mlp.experts.*.probe.output", "mlp.shared_experts.output", "mlp.output", "output",
    "enorm.output", "hnorm.output", "eh_proj.output", "shared_head.norm.output", "shared_head.head.output",
]
# RoPE's tables, recorded with the standard stages: a number near a tie may round either way in them, and all scores
# with it. V4 has a table for sliding windows and one for compressed keys.
ROTARY = [f"model.rotary_emb.{kind}{t}" for kind in ("", "main.", "compress.") for t in ("cos", "sin")]
INNER = [
    *(f"mlp.{m}{s}" for m in ("", "shared_experts.", "experts.*.")
      for s in ("gate_proj.output", "up_proj.output", "down_proj.input")),
    "mlp.experts.*.output", "self_attn.attn_weights", *ROTARY,
]
PROBE = "mlp.experts.*.probe.output"
PROBE_ROWS = 4  # that an expert runs on which no token chose
LONGEST_PROBABILITIES = 512  # tokens: self_attn.attn_weights grow with the square of them


class Trouble(Exception):
    """What the user must know: which file, which tensor, why. Exit status 2."""


def together(problems):
    """One error of many problems."""
    if problems:
        more = [f"and {len(problems) - 20} more"] if len(problems) > 20 else []
        raise Trouble("\n  ".join([*problems[:20], *more]))


# ---------------------------------------------------------------------------------------------
# The command line


def arguments(argv):
    p = argparse.ArgumentParser(prog="golden.py", formatter_class=argparse.RawDescriptionHelpFormatter,
                                usage="golden.py CHECKPOINT PACK (--random BxT | --tokens FILE | --text STRING) [flags]",
                                description=__doc__.split("\n\nexamples:")[0], epilog="examples:" + __doc__.split("examples:")[1])
    p.add_argument("checkpoint", metavar="CHECKPOINT", help="directory with config.json and safetensors or .bin files")
    p.add_argument("pack", metavar="PACK", help="directory to write; it must not exist")
    tokens = p.add_mutually_exclusive_group(required=True)
    tokens.add_argument("--random", metavar="BxT", help="B sequences of T tokens drawn from the whole vocabulary")
    tokens.add_argument("--tokens", metavar="FILE", help="JSON, [[ids], ...] or {\"input_ids\": ..., \"attention_mask\": ...}, or a "
                        "safetensors file with these two, as packs have in inputs.safetensors")
    tokens.add_argument("--text", metavar="STRING", action="append", help="through the checkpoint's tokenizer; again for more sequences")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="of --random and of seeded inputs of layers (default 0)")
    p.add_argument("--mask", action="store_true", help="with --random: all sequences but the first begin with T//3 padded positions")
    p.add_argument("--reference", choices=["remote", "native"], help="default: native where transformers has the class")
    p.add_argument("--trust-remote-code", action="store_true", help="allow Python code of the checkpoint to run")
    p.add_argument("--code", metavar="DIR", help="where the files of auto_map are, if not in CHECKPOINT")
    p.add_argument("--dtype", choices=list(DTYPES), default="float32", help="compute dtype (default float32)")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the reference runs (default cpu); the pack says what "
                   "torch is set to there: TF32 products, sums in fewer bits")
    p.add_argument("--attn", choices=["eager", "sdpa"], default="eager", help="attention (default eager); sdpa, transformers' own "
                   "default, gives no probabilities")
    p.add_argument("--experts", choices=["eager", "grouped_mm", "batched_mm"], default="eager", help="how transformers' classes compute "
                   "routed experts (default eager); grouped_mm, transformers' own default, and batched_mm need all experts of a layer in memory")
    p.add_argument("--cast", action="store_true", help="load in float32, then cast with model.to(DTYPE), which rounds RoPE's frequencies and "
                   "router biases too. Without it, from_pretrained(dtype) loads, which does not")
    p.add_argument("--layers", metavar="LIST", help="record these alone, such as 0,3-5,60; where the layer before was not recorded the "
                   "input is random, and part of the pack; files that hold nothing of them need not be there")
    p.add_argument("--stages", metavar="LIST", default="standard,grad", help="standard, inner, grad, all, or "
                   "patterns of stages such as 'self_attn.*,output' (default standard,grad)")
    p.add_argument("--no-probes", action="store_true", help="leave alone the experts that no token chose. Without it, each of them runs on "
                   f"up to {PROBE_ROWS} rows of post_attention_layernorm.output, so that verify can hold its weights, too")
    p.add_argument("--block", action="store_true", help="record the MLPs alone, each on seeded random numbers that its norm has seen: of "
                   "classes whose attention dsmoe does not compute")
    p.add_argument("--mtp", action="store_true", help="record the multi-token prediction layers, too (native V3 and GLM-4.5)")
    p.add_argument("--train", action="store_true", help="training mode: loss, auxiliary losses, gradients of the weights and of the recorded stages "
                   "(first DeepSeekMoE)")
    p.add_argument("--override", metavar="KEY=JSON", action="append", default=[], help="run with another value in config.json")
    p.add_argument("--threads", type=int, default=1, metavar="N", help="of torch (default 1)")
    p.add_argument("--repeat", action="store_true", help="run each layer again with another number of threads and note the differences; with "
                   "--train also the whole model with sequences, channels, neurons and vocabulary in another order, for the gradients'")
    p.add_argument("--untried-versions", action="store_true", help="go on with versions of torch and transformers not tried with this")
    a = p.parse_args(argv)
    try:
        a.override = {k: json.loads(v) for k, v in (o.split("=", 1) for o in a.override)}
    except ValueError as e:
        p.error(f"--override: KEY=JSON expected: {e}")
    if a.threads < 1:
        p.error("--threads: at least 1")
    if a.mask and not a.random:
        p.error("--mask: with --random only")
    if a.train and (a.dtype != "float32" or a.layers or a.mtp):
        p.error("--train: float32, all layers, without --mtp")
    if a.block and (a.mtp or a.train or a.cast):
        p.error("--block: without --mtp, --train and --cast")
    if a.mtp and (a.mask or a.layers):
        p.error("--mtp: all layers, without --mask: the reference's prediction layers know no padding")
    if a.repeat and a.device != "cpu":
        p.error("--repeat: with --device cpu: a GPU's sums do not depend on torch's threads")
    if a.cast and a.dtype == "float32":
        p.error("--cast: with --dtype bfloat16 or float16")
    a.stages = a.stages.split(",")
    for s in a.stages:
        if a.attn != "eager" and s == "self_attn.attn_weights":
            p.error(f"--stages: {a.attn} attention gives no {s}: give --attn eager")
        if s not in ("standard", "inner", "grad", "all") and not fnmatch.filter([*STANDARD, *INNER], s) and not s.endswith(".grad"):
            p.error(f"--stages: {s!r} is no stage; there are standard, inner, grad, all, {', '.join([*STANDARD, *INNER])}")
    return a


def layer_list(text, count):
    """The numbers of "0,3-5,60", all of count if text is None."""
    if text is None:
        return list(range(count))
    layers = set()
    for part in text.split(","):
        m = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if not m:
            raise Trouble(f"--layers: {part!r} is not a number or a range")
        first, last = int(m[1]), int(m[2] or m[1])
        if not first <= last < count:
            raise Trouble(f"--layers: {part}: the model has layers 0-{count - 1}")
        layers.update(range(first, last + 1))
    return sorted(layers)


# ---------------------------------------------------------------------------------------------
# The checkpoint


class Checkpoint:
    """Named tensors of a checkpoint, read from its files one at a time."""

    def __init__(self, path):
        self.path = path
        self.used = {}  # file -> its size and time of change when it was first read
        self.headers = {}  # file -> {tensor: its shape and dtype}
        self.broken = set()  # files whose problem has been told
        if not os.path.isdir(path):
            raise Trouble(f"{path}: no directory of a checkpoint on this disk")
        self.whole = self.json("config.json")
        key, self.prefix, self.only = AROUND.get(self.whole.get("model_type"), (None, "", None))
        self.config = self.whole if key is None else self.whole.get(key)
        if not isinstance(self.config, dict):
            raise Trouble(f"{self.at('config.json')}: no {key}, the configuration of the language model")
        weights = next((w for w in WEIGHTS if os.path.isfile(self.at(w))), None)
        if weights is None:
            raise Trouble(f"{path}: no weights: there is none of {', '.join(WEIGHTS)}")
        self.index = weights if weights.endswith(".json") else None
        self.where = self.json(weights).get("weight_map", {}) if self.index else dict.fromkeys(self.header(weights), weights)
        if not self.where:
            raise Trouble(f"{self.at(weights)}: no weights")
        self.block = self.quantisation()
        block = (self.config.get("architectures") or [""])[0] in [*BLOCKS, *PUBLISHED]
        self.text = self.config.get("text_config", self.config) if block else self.config
        self.native = self.native_names() if block or self.config.get("model_type") in RENAMED else {}
        if "model.word_embeddings.weight" in self.where:
            self.native["model.embed_tokens.weight"] = "model.word_embeddings.weight"
        self.rows = self.rows_of_parts()  # of weights that are a part of a stored tensor

    def native_names(self):
        """Stored names by those of transformers' modules, which has renamings for published and for saved names."""
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping
        from transformers.core_model_loading import WeightRenaming, apply_renamings
        types = dict.fromkeys((self.config["model_type"], self.text.get("model_type")))  # of what is around a text model, and of that
        renamings = [r for t in types if t for r in get_checkpoint_conversion_mapping(t) or () if isinstance(r, WeightRenaming)]
        native, problems = {}, []
        for stored in self.where:
            short = stored.removeprefix("model.")
            name = apply_renamings(short, renamings)  # some patterns begin with "model."
            name = apply_renamings("model." + short, renamings).removeprefix("model.") if name == short else name
            for short, part in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
                name = name.replace(f".{short}.", f".{part}.")
            name = re.sub(r"^(backbone\.|model\.)?(language_model\.)?", "", name).replace(".mixer.", ".mlp.")
            name = re.sub(r"\.moe\.(gate|up)_proj\.weight$", r".mlp.experts.\1_proj", name)  # stacked, and apart
            first = native.setdefault(name if name.startswith("lm_head.") else "model." + name, stored)
            if first != stored:
                problems.append(f"{self.path}: {first} and {stored} are the same weight")
        together(problems)
        return native

    def rows_of_parts(self):
        """Rows of queries, keys and values, which transformers' modules have apart, in one stored matrix; it finds that, too."""
        rows = {}
        for name, stored in [n for n in self.native.items() if ".query_key_value." in n[0]]:
            heads, groups = self.config["num_attention_heads"], self.config["num_key_value_heads"]
            counted, width = 0, self.header(self.where[stored])[stored][0][0] // (heads + 2 * groups)
            for part, n in (("q_proj", heads), ("k_proj", groups), ("v_proj", groups)):
                own = name.replace("query_key_value", part)
                self.native[own], rows[own] = stored, slice(counted * width, (counted + n) * width)
                counted += n
        return rows

    def at(self, file):
        return os.path.join(self.path, file)

    def json(self, file):
        try:
            self.touch(file)
            with open(self.at(file), encoding="utf-8") as f:
                value = json.load(f)
        except (OSError, ValueError) as e:
            raise Trouble(f"{self.at(file)}: {reason(e)}") from None
        if not isinstance(value, dict):
            raise Trouble(f"{self.at(file)}: not a JSON object")
        return value

    def touch(self, file):
        info = os.stat(self.at(file))
        state = (info.st_size, info.st_mtime_ns)
        if self.used.setdefault(file, state) != state:
            raise Trouble(f"{self.at(file)}: changed while it was read")

    def quantisation(self):
        """Rows and columns of a block that shares a scale; None if nothing is quantised."""
        q = self.config.get("quantization_config")
        if not q:
            return None
        if q.get("quant_method") != "fp8":
            raise Trouble(f"{self.at('config.json')}: quantization_config: quant_method {q.get('quant_method')!r}: this reads fp8 with "
                          "weight_scale_inv, and plain weights")
        block = q.get("weight_block_size") or [128, 128]
        if len(block) != 2 or not all(isinstance(n, int) and n > 0 for n in block):
            raise Trouble(f"{self.at('config.json')}: quantization_config: weight_block_size {block}")
        return block

    def header(self, file):
        """Tensor -> shape and dtype, of one file."""
        if file not in self.headers:
            try:
                self.touch(file)
                if file.endswith(".bin"):
                    self.headers[file] = {k: (list(t.shape), NAMES.get(t.dtype, str(t.dtype))) for k, t in self.unpickle(file).items()}
                else:
                    with safe_open(self.at(file), "pt") as f:
                        slices = {k: f.get_slice(k) for k in f.keys()}
                        self.headers[file] = {k: (list(s.get_shape()), s.get_dtype()) for k, s in slices.items()}
            except Trouble:
                raise
            except Exception as e:  # each library has errors of its own
                raise Trouble(f"{self.at(file)}: {reason(e)}") from None
        return self.headers[file]

    def unpickle(self, file):
        return torch.load(self.at(file), map_location="cpu", mmap=True, weights_only=True)

    def resolve(self, name):
        """The stored name of a tensor: a base model's names lack "model.", others have a prefix."""
        names = (name, self.prefix + name, name.removeprefix("model."), self.native.get(name))
        return next((n for n in names if n in self.where), name)

    def layers(self):
        """The numbers of the layers that it holds weights of."""
        names = (name.removeprefix(self.prefix) for name in self.where)
        return {int(m[1]) for name in names if (m := re.match(r"(?:model\.)?layers\.(\d+)\.", name))}

    def problem(self, name, want):
        """What is wrong with a weight of which the reference has the shape want; a file's own problem once."""
        rows = self.rows.get(name)
        name = self.resolve(name)
        if name not in self.where:
            return f"{self.path}: there is no tensor {name}"
        file = self.where[name]
        if file in self.broken:
            return None
        try:
            header = self.header(file)
        except Trouble as e:
            self.broken.add(file)
            return f"{e}: {name} and others should be there"
        if name not in header:
            return f"{self.at(file)}: there is no tensor {name}, though {self.index} says so"
        shape, dtype = header[name]
        if dtype == "I8":
            shape = [*shape[:-1], 2 * shape[-1]]
        if ([rows.stop - rows.start, *shape[1:]] if rows else shape) != want:
            return f"{self.at(file)}: {name}: shape {shape}, the reference has {want}"
        if dtype in ("F8_E4M3", "I8"):
            scales = self.scales(name)
            if self.block is None or scales not in self.where:
                return f"{self.at(file)}: {name}: {dtype} without {scales}, or without quantization_config in config.json"
            return self.problem(scales, [math.ceil(n / b) for n, b in zip(shape, self.block if dtype != "I8" else [1, FP4_GROUP])])
        wanted = ["I64"] if name.endswith(".tid2eid") else ["F32", "BF16", "F16"] + ["F8_E8M0"] * name.endswith("scale")
        if dtype not in wanted:
            return f"{self.at(file)}: {name}: dtype {dtype}: this reads {', '.join(wanted)}, and F8_E4M3 and FP4 in I8 with scales"
        return None

    def scales(self, name):
        """The stored name of the scales of a quantised tensor: V4's, or what all others have."""
        v4 = name.removesuffix("weight") + "scale"
        return v4 if v4 in self.where else self.resolve(name + "_scale_inv")

    def read(self, name, part=None):
        """A tensor as it is stored, or one expert's part of it."""
        name = self.resolve(name)
        file = self.where[name]
        try:
            self.touch(file)
            if file.endswith(".bin"):
                t = self.unpickle(file)[name]
                return t if part is None else t[part]
            with safe_open(self.at(file), "pt") as f:
                return f.get_tensor(name) if part is None else f.get_slice(name)[part]
        except Trouble:
            raise
        except Exception as e:
            raise Trouble(f"{self.at(file)}: {name}: {reason(e)}") from None

    def weight(self, name, dtype, part=None):
        """A weight as the reference has it: dequantised in float32, then cast."""
        t = self.read(name, part)
        thing = f"{self.at(self.where[self.resolve(name)])}: {name}"
        if t.dtype == torch.int64:
            return t
        if t.dtype in (FP8, torch.int8):
            t = self.dequantise(t, name, part)
        if name in self.rows:
            t = t[self.rows[name]]
        cast = t.to(dtype)
        if not torch.isfinite(cast).all():
            cause = "not finite" if not torch.isfinite(t).all() else f"too large for {dtype}"
            where = (~torch.isfinite(cast)).nonzero()
            raise Trouble(f"{thing}: {cause} in {len(where)} of {cast.numel()} elements, the first at {where[0].tolist()}")
        return cast

    def dequantise(self, q, name, part):
        """float(q) * its scale: one for each block of FP8, for each group of FP4."""
        block = self.block
        if q.dtype == torch.int8:
            block, low = [1, FP4_GROUP], q.view(torch.uint8).long()
            q = FP4[torch.stack((low & 15, low >> 4), -1).flatten(-2)]
        s = self.read(self.scales(self.resolve(name)), part).float()
        s = s.repeat_interleave(block[0], 0)[: q.shape[0]].repeat_interleave(block[1], 1)[:, : q.shape[1]]
        return q.float() * s

    def hashes(self, progress):
        """sha256 of config.json and of every file of weights that was read."""
        files = sorted(set(self.used) - {self.index})
        progress.begin("hashing the checkpoint", sum(self.used[file][0] for file in files))
        return {file: "sha256:" + sha256(self.at(file), progress, lambda: self.touch(file)) for file in files}


def sha256(path, progress=None, after=lambda: None):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 24):
            h.update(block)
            if progress:
                progress.add(len(block))
    after()
    return h.hexdigest()


def reason(e):
    """An exception's text, without the path that the message has already."""
    return " ".join((e.strerror if isinstance(e, OSError) and e.strerror else str(e)).split()) or type(e).__name__


# ---------------------------------------------------------------------------------------------
# The tokens


def tokens_of(a, checkpoint, vocab):
    """input_ids, attention_mask or None, and where they came from."""
    if a.random:
        ids, mask, origin = random_tokens(a, vocab)
    elif a.text:
        ids, mask, origin = text_tokens(a, checkpoint)
    else:
        ids, mask, origin = file_tokens(a.tokens)
    if ids.dim() != 2 or 0 in ids.shape:
        raise Trouble(f"input_ids: shape {list(ids.shape)}, [batch, seq] expected")
    bad = ids[(ids < 0) | (ids >= vocab)]
    if len(bad):
        raise Trouble(f"input_ids: {bad[0].item()} is not in the vocabulary of {vocab}")
    if mask is not None and (mask.shape != ids.shape or not ((mask == 0) | (mask == 1)).all()):
        raise Trouble(f"attention_mask: 0 or 1 of shape {list(ids.shape)} expected")
    return ids.contiguous(), None if mask is None else mask.contiguous(), origin


def random_tokens(a, vocab):
    m = re.fullmatch(r"(\d+)x(\d+)", a.random)
    if not m or "0" in m.groups():
        raise Trouble(f"--random: {a.random!r}: BxT expected, such as 2x17")
    batch, seq = int(m[1]), int(m[2])
    ids = torch.randint(vocab, (batch, seq), generator=torch.Generator().manual_seed(a.seed))
    mask = None
    if a.mask:
        mask = torch.ones_like(ids)
        mask[1:, : seq // 3] = 0
        if batch == 1 or seq < 3:
            raise Trouble("--mask: at least 2 sequences of 3 tokens")
    return ids, mask, {"kind": "random", "seed": a.seed}


def text_tokens(a, checkpoint):
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint.path, trust_remote_code=a.trust_remote_code)
    except Exception as e:
        raise Trouble(f"{checkpoint.path}: no tokenizer: {reason(e)}") from None
    rows = [tokenizer(t)["input_ids"] for t in a.text]
    longest = max(map(len, rows))
    if min(map(len, rows)) == 0:
        raise Trouble("--text: a text without a token")
    ids = torch.tensor([[row[0]] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids, None if mask.all() else mask, {"kind": "text", "text": a.text}


def file_tokens(path):
    try:
        if path.endswith(".safetensors"):
            with safe_open(path, "pt") as f:
                found = {k: f.get_tensor(k) for k in f.keys() if k in ("input_ids", "attention_mask")}
        else:
            with open(path, encoding="utf-8") as f:
                found = json.load(f)
            found = found if isinstance(found, dict) else {"input_ids": found}
        if "input_ids" not in found:
            raise ValueError("no input_ids")
        ids, mask = (None if found.get(k) is None else torch.as_tensor(found[k]) for k in ("input_ids", "attention_mask"))
        if ids.dim() == 1:
            ids = ids[None]
        if ids.is_floating_point() or mask is not None and mask.is_floating_point():
            raise ValueError("whole numbers expected")
        return ids.long(), None if mask is None else mask.long(), {"kind": "file", "sha256": "sha256:" + sha256(path)}
    except Exception as e:
        raise Trouble(f"{path}: {reason(e)}") from None


# ---------------------------------------------------------------------------------------------
# The reference


class Reference:
    """The model as the reference builds it, without memory for weights."""

    def __init__(self, a, checkpoint):
        self.kind = a.reference or checkpoint.only or ("remote" if self.architecture(checkpoint) not in KNOWN["native"] else "native")
        self.check(a, checkpoint)
        self.dtype, self.device, self.attn, self.experts = DTYPES[a.dtype], torch.device(a.device), a.attn, a.experts
        self.built = torch.float32 if a.cast else self.dtype  # dtype under which the modules are made
        self.cast = a.cast
        self.cls, config = self.load_class(a, checkpoint)
        if hasattr(config, "quantization_config"):
            del config.quantization_config  # weights are dequantised when they are read
        if self.cls.__name__ in TRIED:
            config.num_nextn_predict_layers = 0  # Ling's code would run them
        self.model = self.build(config)
        self.model.train(a.train)
        for module in self.model.modules() if self.cls.__name__ in TRIED else []:  # beside its own names, which weights have
            vars(module).update({LING[n]: m for n, m in module.named_children() if n in LING})
        self.config = self.model.config.get_text_config() if a.block else self.model.config
        self.decoder = getattr(self.model.model, "language_model", self.model.model) if a.block else self.model.model
        self.layers = self.decoder.layers
        self.one_rotary = getattr(self.model.model, "rotary_emb", None) is not None
        if self.one_rotary and not a.block:
            self.model.model.rotary_emb = self.real(lambda: type(self.model.model.rotary_emb)(self.config))

    @staticmethod
    def architecture(checkpoint):
        name = (checkpoint.config.get("architectures") or ["none"])[0]
        return PUBLISHED.get(name, name)

    def check(self, a, checkpoint):
        problems, versions = [], tuple(m.__version__.split("+")[0] for m in (torch, transformers))
        name = self.architecture(checkpoint)
        v4 = name == "DeepseekV4ForCausalLM"
        if name in CLASSLESS:
            raise Trouble(f"{checkpoint.at('config.json')}: architectures {name}: transformers has no class for it: {CLASSLESS[name]}")
        if name not in KNOWN["remote"] + KNOWN["native"]:
            raise Trouble(f"{checkpoint.at('config.json')}: architectures {name}: this records "
                          f"{', '.join(sorted(set(KNOWN['remote'] + KNOWN['native'])))}")
        if name not in KNOWN[self.kind]:
            problems.append(f"{checkpoint.at('config.json')}: architectures {name}: with --reference {self.kind} this records "
                            f"{', '.join(KNOWN[self.kind])}")
        if checkpoint.only not in (None, self.kind):
            problems.append(f"{checkpoint.at('config.json')}: model_type {checkpoint.whole['model_type']}: transformers' {name} computes "
                            f"another model: give --reference {checkpoint.only}")
        if checkpoint.only and a.dtype != "float32" and checkpoint.config.get("use_mla", True):
            problems.append("--dtype: the attention of DeepSeek-VL2's code rounds where dsmoe does not: float32 only")
        if a.block != (name in BLOCKS):
            problems.append(f"{checkpoint.at('config.json')}: architectures {name}: dsmoe does not compute its attention: give --block"
                            if name in BLOCKS else f"--block: dsmoe computes all of {name}: record it without")
        known = TRIED["native"][-1:] if name in BLOCKS else TRIED.get(name, TRIED[self.kind])
        if versions not in known and not a.untried_versions:
            tried = " or ".join(f"torch {t} with transformers {v}" for t, v in known)
            problems.append(f"torch {versions[0]} with transformers {versions[1]} was not tried with the {self.kind} reference: install "
                            f"{tried}, or give --untried-versions")
        if self.kind == "remote" and not a.trust_remote_code:
            problems.append(f"the remote reference runs the Python code of {a.code or checkpoint.path}: give --trust-remote-code if you trust it")
        if self.kind == "remote" and a.experts != "eager":
            problems.append(f"--experts {a.experts}: the remote reference computes experts by its own code: give --reference native")
        if a.device == "cuda" and not torch.cuda.is_available():
            problems.append(f"--device cuda: torch {torch.__version__} finds no GPU that it can use")
        if a.train and name != "DeepseekForCausalLM":
            problems.append(f"--train: {name}: dsmoe verifies training of DeepseekForCausalLM only")
        if name in INDEXED and a.dtype == "float16":
            problems.append(f"--dtype float16: {name} keeps weights_proj in float32 then: dsmoe verifies float32 and bfloat16")
        if name in INDEXED and a.attn != "eager":
            why = "transformers has no other attention for it than eager" if v4 else "the scores of its indexer are infinite then"
            problems.append(f"--attn {a.attn}: {name}: {why}: dsmoe verifies eager attention")
        if v4 and a.cast:
            problems.append(f"--cast: {name}: transformers keeps norms, sinks and hyper-connections in float32: dsmoe verifies what "
                            "from_pretrained(dtype) makes")
        if a.mtp and (self.kind != "native" or name not in PREDICTING):
            problems.append(f"--mtp: with transformers' {' and '.join(PREDICTING)} only")
        together(problems)

    def load_class(self, a, checkpoint):
        """The class and the configuration."""
        try:
            if self.kind == "native":
                cls = getattr(transformers, self.architecture(checkpoint))
                model, known = checkpoint.config.get("model_type"), transformers.CONFIG_MAPPING  # whose class may be another family's
                return cls, self.configuration(known[model] if model in known else cls.config_class, a, checkpoint)
            from transformers import dynamic_module_utils as dynamic
            imports = dynamic.get_imports  # 4.39 demands flash_attn of code that imports it only where it is installed
            dynamic.get_imports = lambda file: [i for i in imports(file) if i != "flash_attn"]
            config, cls = (dynamic.get_class_from_dynamic_module(self.code(a, checkpoint, k), a.code or checkpoint.path)
                           for k in ("AutoConfig", "AutoModelForCausalLM"))
            return cls, self.configuration(config, a, checkpoint)
        except Trouble:
            raise
        except Exception as e:
            raise Trouble(f"{a.code or checkpoint.path}: the reference's code: {reason(e)}") from None

    @staticmethod
    def configuration(cls, a, checkpoint):
        """config.json with what overrides it, all of which the reference must know."""
        config = cls.from_pretrained(checkpoint.path) if checkpoint.config is checkpoint.whole else cls.from_dict(copy.deepcopy(checkpoint.config))
        together([f"--override {k}: not in config.json, nor known to {cls.__name__}"
                  for k in a.override if k not in checkpoint.config and not hasattr(config, k)])
        return cls.from_dict(copy.deepcopy(checkpoint.config | a.override)) if a.override else config

    @staticmethod
    def code(a, checkpoint, key):
        """module.Class of auto_map, the module's file being there."""
        name = str((checkpoint.config.get("auto_map") or {}).get(key, "")).rpartition("--")[2]
        if "." not in name:
            raise Trouble(f"{checkpoint.at('config.json')}: auto_map has no {key}: it names no code to run")
        file = os.path.join(a.code or checkpoint.path, name.split(".")[0] + ".py")
        if not os.path.exists(file):
            raise Trouble(f"{file}: not there, but config.json's auto_map names it: copy the published .py files to CHECKPOINT, or give "
                          "their directory as --code")
        return name

    def build(self, config):
        options = {"attn_implementation": self.attn, "torch_dtype": self.built}
        if self.kind == "native":
            options = {"attn_implementation": self.attn, "experts_implementation": self.experts, "dtype": self.built}
        try:
            with torch.device("meta"):
                return self.cls._from_config(config, **options)
        except Exception as e:
            raise Trouble(f"{self.cls.__name__}: the reference refuses this config.json: {type(e).__name__}: {reason(e)}") from None

    def real(self, make):
        """What make builds, its buffers as the reference has them."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.built)
        try:
            module = make()
        finally:
            torch.set_default_dtype(before)
        return module.to(self.device, self.dtype if self.cast else None)

    def restore_rotary(self, layer):
        """Makes the layer's own rotary tables, where a reference has one in each layer."""
        if not self.one_rotary:
            layer.self_attn.rotary_emb = self.real(lambda: layer.self_attn._init_rope() or layer.self_attn.rotary_emb)
        for module in list(layer.modules()) if self.one_rotary else []:
            if hasattr(module, "rotary_emb"):  # a compressor's or its indexer's
                module.rotary_emb = self.real(lambda: type(module.rotary_emb)(self.config))

    def dtype_of(self, name):
        """The dtype that the reference keeps a weight in: transformers looks for patterns such as "gate.weight" in names."""
        if self.cast or self.dtype == torch.float32:
            return self.dtype
        keep = [*(getattr(self.model, "_keep_in_fp32_modules_strict", None) or [])]
        if self.dtype == torch.float16:
            keep += getattr(self.model, "_keep_in_fp32_modules", None) or []
        return torch.float32 if any(re.search(k.replace("*", ".*"), name) for k in keep) else self.dtype

    def describe(self, a, checkpoint):
        source = inspect.getsourcefile(self.cls)
        told = {"model": self.cls.__name__, "kind": "remote code" if self.kind == "remote" else "transformers native"}
        told["file"] = os.path.basename(source) if self.kind == "remote" else "models/" + os.path.basename(os.path.dirname(source))
        told["file_sha256"] = "sha256:" + sha256(source)
        told["attn_implementation"] = self.config._attn_implementation
        if self.kind == "native":
            told["experts_implementation"] = self.config._experts_implementation
        told |= {"compiled": True} if compiled() else {}
        told |= {"replaced": replaced} if (replaced := self.replaced()) else {}
        if checkpoint.block:
            told["weights"] = "dequantised to f32 as float(q) * weight_scale_inv per {}x{} block".format(*checkpoint.block)
            if checkpoint.config.get("model_type") == "deepseek_v4":
                told["weights"] = ("dequantised to f32 as float(q) * scale per {}x{} block in FP8, per {} of a row in FP4"
                                   .format(*checkpoint.block, FP4_GROUP))
            if self.dtype != torch.float32:
                told["weights"] += f", then cast to {a.dtype}"
        if a.mtp:
            told["mtp"] = "MtpModel.forward_layer, modeling_layers.py"
        return told | {"transformers": transformers.__version__, "torch": torch.__version__, "python": platform.python_version(),
                       "device": self.device.type, "cpu": cpu(), "threads": a.threads} | self.precision()

    def replaced(self):
        """Classes and functions with code that is neither the reference's nor torch's, and the module that it is from: kernels
        of the hub (use_kernels), or a patch."""
        ran = {type(module).__name__: module.forward for module in self.model.modules()}
        if self.kind == "native":
            from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
            from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
            functions = inspect.getmembers(sys.modules[self.cls.__module__], inspect.isfunction)
            ran |= {name: code for name, code in functions if not name.startswith("__")}  # torch.compile adds such names
            ran |= {name: functions[name] for functions, name in ((ALL_ATTENTION_FUNCTIONS, self.config._attn_implementation),
                    (ALL_EXPERTS_FUNCTIONS, self.config._experts_implementation)) if name in functions}
        origins = {name: getattr(code, "__module__", None) or "unknown" for name, code in sorted(ran.items())}
        own = ("torch", "transformers", "transformers_modules", "collections", "dataclasses", "functools", "typing", __name__)
        return {name: origin for name, origin in origins.items() if origin.split(".")[0] not in own}

    def precision(self):
        """What products of torch are set to. Of a CPU this is the precision of float32 alone, of a GPU its name, too."""
        if self.device.type != "cuda":
            return {"precision": {"float32_matmul_precision": float32_precision()}}
        matmul = torch.backends.cuda.matmul
        return {"gpu": torch.cuda.get_device_name(self.device),
                "precision": {"matmul_tf32": matmul.allow_tf32, "cudnn_tf32": torch.backends.cudnn.allow_tf32,
                              "reduced_bf16_sums": matmul.allow_bf16_reduced_precision_reduction,
                              "reduced_fp16_sums": matmul.allow_fp16_reduced_precision_reduction,
                              "float32_matmul_precision": torch.get_float32_matmul_precision()}}


def float32_precision():
    """How precise float32 products of a CPU are, in the words of torch.set_float32_matmul_precision. Newer torch has settings
    of oneDNN beside that, which decide."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if matmul is None:
        return torch.get_float32_matmul_precision()
    return {"bf16": "medium", "tf32": "high"}.get(matmul.fp32_precision, "highest")


def compiled():
    """Whether torch.compile has compiled anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and dynamo.counters["stats"]["unique_graphs"] > 0


def cpu():
    """The processor's name, for the record."""
    with contextlib.suppress(OSError):
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


# ---------------------------------------------------------------------------------------------
# The pack


class Pack:
    """Files under a hidden sibling of the pack's name, which becomes the pack when all is there."""

    def __init__(self, path):
        self.path = os.path.normpath(path)
        if os.path.lexists(self.path):
            raise Trouble(f"{self.path}: exists already: remove it or give another name")
        parent, name = os.path.split(self.path)
        try:
            self.work = tempfile.mkdtemp(prefix=f".{name}.partial-", dir=parent or ".")
        except OSError as e:
            raise Trouble(f"{parent or '.'}: {reason(e)}") from None
        self.files, self.tensors = {}, {}

    def write(self, name, tensors):
        """Writes one file of tensors."""
        if not tensors:
            return
        file = name + ".safetensors"
        path = os.path.join(self.work, file)
        try:
            save_file(tensors, path)
            self.readable(path)
            self.sync(path)
            self.files[file] = "sha256:" + sha256(path)
        except Exception as e:
            raise Trouble(f"{os.path.join(self.path, file)}: not written: {reason(e)}") from None
        for key in sorted(tensors):
            self.tensors[key] = {"file": file, "dtype": NAMES[tensors[key].dtype], "shape": list(tensors[key].shape)}

    @staticmethod
    def readable(path, mode=0o666):
        """Gives a file the permissions that the umask leaves to a new one: safetensors and mkdtemp give their owner alone any."""
        os.chmod(path, mode & ~umask())

    @staticmethod
    def sync(path):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def finish(self, manifest):
        """Writes the manifest, last, and gives the pack its name."""
        path = os.path.join(self.work, "manifest.json")
        try:
            with open(path, "w", encoding="utf-8") as f:
                f.write(rendered(manifest | {"files": self.files, "tensors": self.tensors}))
            self.sync(path)
            self.readable(self.work, 0o777)
            self.sync(self.work)
            os.rename(self.work, self.path)
            self.sync(os.path.dirname(self.path) or ".")
        except OSError as e:
            raise Trouble(f"{self.path}: not written: {reason(e)}") from None

    def abandon(self):
        shutil.rmtree(self.work, ignore_errors=True)


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def rendered(manifest):
    """JSON with a line for each file and tensor."""
    lines = []
    for key, value in manifest.items():
        if key in ("checkpoint", "files", "tensors", "noise", "probes") and isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def kind_of(name):
    """The stage without its layer and expert: model.layers.3.mlp.experts.7.output -> mlp.experts.*.output"""
    return re.sub(r"^mlp\.experts\.\d+\.", "mlp.experts.*.", re.sub(r"^model\.layers\.\d+\.", "", name))


def on_cpu(tensor):
    """A tensor's values in memory of their own."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


class Recorder:
    """Takes the tensors that hooks see, if they are wanted."""

    def __init__(self, stages, dtype, seq, attn):
        self.stages = stages
        self.probabilities = attn == "eager" and dtype != torch.float32 and seq <= LONGEST_PROBABILITIES
        self.seen, self.kept = {}, set()  # kinds: an ordered set, a set
        self.now = {}  # of the module that runs
        self.noise = {}
        self.gaps = {"router_gap_min": {}, "router_score_gap_min": {}, "router_group_gap_min": {}}
        self.again = False  # the module runs a second time
        self.backward = False  # a layer runs again for its gradients: its stages were taken

    def wanted(self, kind):
        return any(self.fits(kind, s) for s in self.stages)

    def fits(self, kind, stages):
        gradient, inner, stage = kind.endswith(".grad"), kind in INNER, kind.removesuffix(".grad")
        if kind == "self_attn.attn_weights" and stages in ("all", "inner"):
            return self.probabilities
        if kind in ROTARY and stages == "standard":
            return True
        if gradient and stages == "grad" and stage in [*STANDARD, *INNER]:
            return self.wanted(stage)
        return {"all": True, "grad": gradient, "inner": inner, "standard": not gradient and not inner}.get(
            stages, fnmatch.fnmatchcase(kind, stages))

    def take(self, name, tensor, part=lambda t: t):
        """Takes that part of a tensor, and of its gradient when that is known."""
        if tensor.grad_fn is not None and self.wanted(kind_of(name) + ".grad"):
            tensor.register_hook(lambda gradient: self.keep(name + ".grad", part(gradient)))
        if not self.backward:
            self.keep(name, part(tensor))

    def keep(self, name, tensor):
        kind = kind_of(name)
        if tensor.numel() == 0:  # a compressor's that sees less than one window
            return
        self.seen[kind] = None
        if not self.wanted(kind):
            return
        t = on_cpu(tensor)
        if t.is_floating_point() and not torch.isfinite(t).all():
            raise Trouble(f"{name}: the reference's own result is not finite in {t.dtype}: a pack of it would prove nothing")
        if name in self.now:
            raise Trouble(f"{name}: the reference gave this stage twice")
        self.now[name] = t
        self.kept.add(kind)

    def taken(self):
        """What was taken since the last call."""
        taken, self.now = self.now, {}
        return taken

    def compare(self, first, second):
        """Notes how far a second run is from the first."""
        for name in (n for n in first if kind_of(n) != "input"):
            a, b = first[name], second.get(name)
            stage = re.sub(r"\.mlp\.experts\.\d+\.", ".mlp.experts.*.", name)
            n = self.noise.setdefault(stage, {"differ": 0} if not a.is_floating_point() else {"max_abs": 0.0, "rel_rms": 0.0})
            if b is None or b.shape != a.shape:
                n["other_tokens"] = True  # an expert that was chosen by others
            elif not a.is_floating_point():
                n["differ"] += int((a.sort(-1).values != b.sort(-1).values).sum())
            else:
                d, size = (b.double() - a.double()), a.double().norm().item()
                n["max_abs"] = max(n["max_abs"], d.abs().max().item() if d.numel() else 0.0)
                n["rel_rms"] = max(n["rel_rms"], d.norm().item() / size if size else 0.0)

    def absent(self):
        """Kinds that the reference gave and that were not wanted."""
        return [k for k in self.seen if k not in self.kept]

    def absorbed(self):
        """Kinds that the reference never gives: DeepSeek-VL2's attention multiplies kv_b_proj's weight into other things."""
        return [k for k in ["self_attn.kv_b_proj.output"] if "self_attn.kv_a_layernorm.output" in self.seen and k not in self.seen]


# ---------------------------------------------------------------------------------------------
# Inside the modules


class Watch(TorchFunctionMode):
    """Sees the functions that the reference calls, for what no module gives: the gate's logits
    and scores, the projections of stacked experts, the sum that the shared experts join."""

    def __init__(self, recorder):
        super().__init__()
        self.recorder = recorder
        self.block = False  # an MLP runs alone
        self.routing = None  # topk_idx and topk_weight [tokens, k] that a gate gave last
        self.forget()

    def forget(self):
        self.base = ""  # "model.layers.3.mlp." while a mixture of experts runs
        self.hidden = self.choice = None  # its input [tokens, hidden] and topk_idx [tokens, k]
        self.gating, self.logits, self.scores = False, None, []
        self.shared = None  # output of the shared experts, the very object
        self.expert = None  # number, part and weight of the stacked expert in use
        self.rows = None  # order of the expert's rows that makes its tokens ascend
        self.indexer, self.index_scores = "", None  # "model.layers.3.self_attn.indexer" while it runs; what it chooses by
        self.attention, self.products = "", 0  # "model.layers.3.self_attn" while V4's multiplies; its products so far
        self.mixing = ""  # "model.layers.3.attn_hc" while it runs

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if self.base:
            self.call(func, getattr(func, "__name__", ""), args, out)
        elif self.indexer:
            self.index(getattr(func, "__name__", ""), args)
        elif self.attention and getattr(func, "__name__", "") == "matmul":
            self.attend(*args, out)
        elif self.mixing and getattr(func, "__name__", "") == "unsqueeze":
            self.recorder.take(self.mixing + ".pre", args[0])
        return out

    def begin_attention(self, name):
        self.attention, self.products = name, 0

    def attend(self, a, b, out):
        """Takes the operands of the first product [batch, heads, seq, head_dim], of keys the tokens' own, and what the second gives."""
        if self.products == 0:
            self.recorder.take(self.attention + ".query", a, lambda t: t.transpose(1, 2))
            self.recorder.take(self.attention + ".kv", b, lambda t: t[:, 0, :, :a.shape[2]].transpose(1, 2))
        else:
            self.recorder.take(self.attention + ".context", out, lambda t: t.transpose(1, 2))
        self.products += 1

    def index(self, name, args):
        """Takes what an indexer multiplies, and what it chooses by."""
        if name == "matmul" and args[0].dim() == 4 and args[1].shape[1] == 1 and not self.multiplied:
            self.multiplied = True
            self.recorder.take(self.indexer + ".q", args[0], lambda t: t.to(self.index_dtype))
            self.recorder.take(self.indexer + ".k", args[1], lambda t: t.squeeze(1).transpose(-1, -2).to(self.index_dtype))
        elif name == "topk":
            self.index_scores = args[0]
            self.recorder.take(self.indexer + ".scores", args[0])

    def begin_indexer(self, name, x):
        self.indexer, self.multiplied, self.index_dtype = name, False, x.dtype

    def end_indexer(self, keys):
        """Takes the keys that each query sees, ascending; -1, last, stands for keys that the mask hides."""
        hidden = self.index_scores.gather(-1, keys.long()) <= torch.finfo(self.index_dtype).min
        last = self.index_scores.shape[-1]
        keys = keys.long().masked_fill(hidden, last).sort(-1).values
        self.recorder.take(self.indexer + ".topk_idx", keys.masked_fill(keys == last, -1))
        self.indexer, self.index_scores = "", None

    def call(self, func, name, args, out):
        if func is F.linear and self.gating and self.logits is None:
            self.logits = out
        elif name == "topk" and self.gating:
            self.scores.append((args[0], out[0].shape[-1]))
        elif func is F.linear and self.expert and args[1] is self.expert[2]:
            self.stacked(args[0], out)
        elif name == "float" and args[0] is self.shared:  # Hy3 adds in float32
            self.shared = out
        elif name in ("add", "__add__") and self.shared is not None and any(x is self.shared for x in args):
            routed = args[1] if args[0] is self.shared else args[0]
            dtype = self.hidden.dtype  # a gradient comes when hidden is forgotten
            self.recorder.take(self.base + "experts.output", routed, lambda t: t.reshape(-1, t.shape[-1]).to(dtype))
            self.shared = None

    def stacked(self, x, out):
        """One product of a stacked expert."""
        number, part, _ = self.expert
        self.expert = None
        if part == "gate_up_proj":
            self.begin_expert(number, x)
            gate, up = out.chunk(2, -1)
            self.take_expert(number, "gate_proj.output", gate)
            self.take_expert(number, "up_proj.output", up)
        elif part == "up_proj":  # Nemotron's have no gate_proj
            self.begin_expert(number, x)
            self.take_expert(number, "up_proj.output", out)
        else:
            self.take_expert(number, "down_proj.input", x)
            self.take_expert(number, "output", out)

    def begin_expert(self, number, x):
        """Finds which token each row of the expert's input is. Of a hash table a token may have an expert twice."""
        tokens = (self.choice == number).nonzero()[:, 0]
        want = self.hidden[tokens]
        if len(tokens) != len(x):
            raise Trouble(f"{self.base}experts.{number}: the reference gives it {len(x)} tokens, topk_idx {len(tokens)}")
        self.rows = torch.arange(len(x), device=x.device)
        if torch.equal(want, x):
            return
        free = list(range(len(x)))
        for i, row in enumerate(want):
            found = next((j for j in free if torch.equal(x[j], row)), None)
            if found is None:
                raise Trouble(f"{self.base}experts.{number}: its input is not that of the tokens in topk_idx")
            free.remove(found)
            self.rows[i] = found

    def take_expert(self, number, what, t):
        rows = self.rows
        if len(rows):
            self.recorder.take(f"{self.base}experts.{number}.{what}", t, lambda t: t[rows])

    def gate(self, output, biased):
        """Takes what a gate gave: the choice, its weights, the logits, the auxiliary loss."""
        self.gating = False
        parts = [t for t in output if isinstance(t, torch.Tensor)]
        self.choice = next(t for t in parts if not t.is_floating_point())
        weight = next(t for t in parts if t.is_floating_point() and t.shape == self.choice.shape and t is not self.logits)
        self.routing = self.choice, weight
        name = self.base + "gate"
        own = next((t for t in parts if self.block and t is not weight and t.shape == self.logits.shape), self.logits)
        self.recorder.take(name + ".logits", own)  # some gates widen or cap them
        self.recorder.take(name + ".topk_idx", self.choice.long())
        self.recorder.take(name + ".topk_weight", weight)
        for t in parts:
            if t.numel() == 1 and t is not weight and t.is_floating_point() and t.dim() == 0:
                self.recorder.take(name + ".aux_loss", t, lambda t: t.reshape(1))
        self.smallest_gaps(name, biased)
        self.logits, self.scores = None, []

    def smallest_gaps(self, name, biased):
        """Notes the smallest distance over the tokens between the last choice that was taken and the
        first that was not: of logits, of the scores that were compared, of groups' worths."""
        flat = [(s, k) for s, k in self.scores if s.dim() == 2]
        if not flat:  # the token alone decides
            return
        self.gap("router_score_gap_min", name, *flat[-1])
        if len(flat) > 1:
            self.gap("router_group_gap_min", name, *flat[0])
        if len(self.scores) == 1 and not biased:  # the scores have the order of the logits
            self.gap("router_gap_min", name, self.logits, flat[-1][1])

    def gap(self, field, name, scores, k):
        if k < scores.shape[-1] and not self.recorder.again:
            best = torch.topk(scores, k + 1, dim=-1).values
            gap = best[:, k - 1] - best[:, k]
            gap = gap[torch.isfinite(gap)]
            if len(gap):
                self.recorder.gaps[field][name] = gap.min().item()


class Stack:
    """Stands for the stacked weights of experts, [e] being loaded when the reference asks for it."""

    def __init__(self, load, watch, part):
        self.load, self.watch, self.part = load, watch, part

    def __getitem__(self, index):
        number = int(index)
        weight = self.load(self.part, number)
        self.watch.expert = (number, self.part, weight)
        return weight


def first(output):
    return output[0] if isinstance(output, tuple) else output


class Hooks:
    """Hooks on the modules of one layer, taken off again when it has run."""

    def __init__(self, layer, name, recorder, watch, rotary):
        self.recorder, self.watch, self.rotary, self.handles = recorder, watch, rotary, []
        for norm in getattr(layer, "norms", ("input_layernorm", "post_attention_layernorm")):
            self.output(layer.get_submodule(norm), f"{name}.{norm}.output")
        if not isinstance(layer, Block):
            self.attention(layer.self_attn, name + ".self_attn")
        for hc in ("attn_hc", "ffn_hc") if hasattr(layer, "attn_hc") else ():
            self.mixes(getattr(layer, hc), f"{name}.{hc}")
        mlp = layer.mlp
        if hasattr(mlp, "experts"):
            self.mixture(mlp, name + ".mlp.")
        else:
            self.mlp(mlp, name + ".mlp.")
        self.output(mlp, name + ".mlp.output")

    def remove(self):
        for h in self.handles:
            h.remove()

    def after(self, module, call):
        self.handles.append(module.register_forward_hook(lambda m, args, out: call(out)))

    def before(self, module, call):
        self.handles.append(module.register_forward_pre_hook(lambda m, args: call(args[0])))

    def output(self, module, name):
        self.after(module, lambda out: self.recorder.take(name, first(out)))

    def attention(self, attn, name):
        for p in PROJECTIONS:
            if getattr(attn, p, None) is not None:
                self.output(getattr(attn, p), f"{name}.{p}.output")
        if hasattr(attn, "sinks"):
            return self.shared_keys(attn, name)
        if getattr(attn, "indexer", None) is not None:
            self.indexes(attn.indexer, name + ".indexer")
        self.before(attn.o_proj, lambda x: self.recorder.take(name + ".o_proj.input", x))
        self.after(attn, lambda out: self.attended(name, out))
        if self.rotary:
            self.after(attn.rotary_emb, self.rotary)

    def shared_keys(self, attn, name):
        """V4's attention, whose queries, keys and context no module gives, and its compressor."""
        w = self.watch
        self.before(attn, lambda x: w.begin_attention(name))
        self.before(attn.o_a_proj, lambda x: self.recorder.take(name + ".o_a_proj.input", x))
        self.output(attn, name + ".output")
        self.after(attn, lambda out: w.begin_attention(""))
        c = attn.compressor
        if c is None:
            return
        self.before(c, lambda x: w.begin_attention(""))
        self.after(c, lambda out: w.begin_attention(name))
        self.compresses(c, name + ".compressor")
        self.after(c, lambda out: self.recorder.take(name + ".compressor.entries", out[0], lambda t: t.squeeze(1)))
        if hasattr(c, "indexer"):
            self.compresses(c.indexer, name + ".compressor.indexer")
            self.chooses(c.indexer, name + ".compressor.indexer")

    def compresses(self, module, name):
        for m in COMPRESSOR:
            self.output(getattr(module, m), f"{name}.{m}.output")

    def chooses(self, indexer, name):
        """Takes the scores of all entries, those to come too, and the choice ascending; -1, last, stands for less to choose from."""
        self.output(indexer.q_b_proj, name + ".q_b_proj.output")
        self.output(indexer.scorer.weights_proj, name + ".scorer.weights_proj.output")

        def scored(module, args, out):
            for stage, t in zip(("q", "entries", "scores"), (*args[:2], out)):
                self.recorder.take(f"{name}.{stage}", t)

        self.handles.append(indexer.scorer.register_forward_hook(scored))
        last = torch.iinfo(torch.int64).max
        ascending = lambda t: t.masked_fill(t < 0, last).sort(-1).values
        self.after(indexer, lambda out: self.recorder.take(name + ".topk_idx", ascending(out), lambda t: t.masked_fill(t == last, -1)))

    def mixes(self, hc, name):
        """A hyper-connection: what it mixes the streams with, and the one that they become."""
        if name.endswith("ffn_hc"):
            self.before(hc, lambda x: self.recorder.take(name + ".input", x))
        self.before(hc, lambda x: setattr(self.watch, "mixing", name))

        def mixed(out):
            self.watch.mixing = ""
            for stage, t in zip(("post", "comb", "collapsed"), out):
                self.recorder.take(f"{name}.{stage}", t)

        self.after(hc, mixed)

    def indexes(self, indexer, name):
        for m in INDEXER:
            self.output(getattr(indexer, m), f"{name}.{m}.output")
        self.before(indexer, lambda x: self.watch.begin_indexer(name, x))
        self.after(indexer, self.watch.end_indexer)

    def attended(self, name, out):
        self.recorder.take(name + ".output", out[0])
        self.recorder.seen["self_attn.attn_weights"] = None
        if out[1] is not None:
            self.recorder.take(name + ".attn_weights", out[1])

    def mlp(self, mlp, base):
        for m in ("gate_proj", "up_proj"):  # MiniMax-M3's has one matrix
            if hasattr(mlp, m):
                self.output(getattr(mlp, m), f"{base}{m}.output")
        self.before(mlp.down_proj, lambda x: self.recorder.take(base + "down_proj.input", x))

    def mixture(self, moe, base):
        w, common = self.watch, getattr(moe, "shared_experts", getattr(moe, "shared_expert", None))

        def begin(x):
            w.base, w.hidden = base, x.reshape(-1, x.shape[-1])

        def end(out):
            if common is None and not w.block:
                self.recorder.take(base + "experts.output", first(out), lambda t: t.reshape(-1, t.shape[-1]))
            w.forget()

        def shared(out):
            self.recorder.take(base + "shared_experts.output", out)
            w.shared = None if w.block else out

        self.before(moe, begin)
        router = moe.router if hasattr(moe, "router") else moe.gate
        self.before(router, lambda x: setattr(w, "gating", True))
        biased = any(hasattr(m, b) for m in (moe, *router.modules()) for b in ("e_score_correction_bias", "expert_bias"))
        self.after(router, lambda out: w.gate(out, biased))
        if common is not None:
            self.mlp(common, base + "shared_experts.")
            self.after(common, shared)
        if w.block:
            self.output(moe.experts, base + "experts.output")
        for latent in ("fc1_latent_proj", "fc2_latent_proj"):
            if isinstance(getattr(moe, latent, None), torch.nn.Linear):
                self.output(getattr(moe, latent), f"{base}{latent}.output")
        if hasattr(moe, "fc1_latent_proj"):
            self.after(moe.fc1_latent_proj, lambda out: setattr(w, "hidden", out.reshape(-1, out.shape[-1])))
        if hasattr(moe, "shared_expert_gate"):
            self.output(moe.shared_expert_gate, base + "shared_expert_gate.output")
        if isinstance(moe.experts, torch.nn.ModuleList):
            for number, expert in enumerate(moe.experts):
                self.apart(expert, number)
        self.after(moe, end)

    def apart(self, expert, number):
        w = self.watch
        self.before(expert, lambda x: w.begin_expert(number, x))
        self.after(expert.gate_proj, lambda out: w.take_expert(number, "gate_proj.output", out))
        self.after(expert.up_proj, lambda out: w.take_expert(number, "up_proj.output", out))
        self.before(expert.down_proj, lambda x: w.take_expert(number, "down_proj.input", x))
        self.after(expert, lambda out: w.take_expert(number, "output", out))


# ---------------------------------------------------------------------------------------------
# Weights, when it is a module's turn


def probe_rows(x, real):
    """Some of the rows of x [tokens, hidden] that real lists, evenly spread, no two of them equal."""
    firsts = {}
    for row in real.tolist():
        firsts.setdefault(hashlib.sha256(x[row].contiguous().view(torch.uint8).numpy()).digest(), row)
    rows = list(firsts.values())
    count = min(PROBE_ROWS, len(rows))
    return [rows[(2 * i + 1) * len(rows) // (2 * count)] for i in range(count)]


def unchosen(idx, weight, real, count):
    """The experts that no real token chose, or none with more than a thousandth of its largest weight: they hardly
    show in a sum."""
    shows = weight > weight.max(-1, keepdim=True).values / 1000
    return sorted(set(range(count)) - set(idx[real][shows[real]].tolist()))


class Unit:
    """A module that is loaded, runs and is recorded as one: a decoder layer, the embedding, the head."""

    def __init__(self, run, module, prefix, file, rename=lambda path: path, ends_file=True):
        self.run, self.module, self.prefix, self.rename = run, module, prefix, rename
        self.file, self.ends_file = file, ends_file  # where its tensors go; a later unit may add to it
        layer = getattr(module, "mtp_block", module)
        self.experts = getattr(getattr(layer, "mlp", None), "experts", None)
        self.stacked = self.experts is not None and not isinstance(self.experts, torch.nn.ModuleList)
        self.stacks = [p for p in ("gate_up_proj", "up_proj", "down_proj") if self.stacked and hasattr(self.experts, p)]
        self.lazy = []  # modules of experts that load themselves

    def parts(self, module=None, prefix=None):
        """(module, attribute, tensor's name) of all weights but those of lazy experts."""
        root, prefix = module or self.module, self.prefix if prefix is None else prefix
        hidden = set() if module or self.run.training or self.experts is None else set(self.experts.modules())
        for path, m in root.named_modules():
            if m in hidden or self.stacked and m is self.experts:
                continue
            for attribute, t in [*m._parameters.items(), *m._buffers.items()]:
                if t is not None and attribute not in m._non_persistent_buffers_set:
                    yield m, attribute, prefix + self.rename(".".join(filter(None, (path, attribute))))

    def expert_count(self):
        return len(self.experts) if not self.stacked else getattr(self.experts, "num_routed_experts", None) or self.experts.num_experts

    def run_expert(self, number, x):
        """What an expert gives for rows [n, hidden], its weights loading themselves."""
        x = x.to(self.run.reference.device)
        if not self.stacked:
            return self.experts[number](x)
        idx, weight = torch.full((len(x), 1), number, device=x.device), torch.ones(len(x), 1, dtype=x.dtype, device=x.device)
        if hasattr(self.experts, "identity_expert"):  # LongCat's code wants two choices: the other one adds 0 times what it took
            idx = torch.cat([idx, torch.full_like(idx, self.experts.total_experts - 1)], 1)
            weight = torch.cat([weight, torch.zeros_like(weight)], 1)
        return self.experts(x, idx, weight)

    def expert(self, number, part):
        return f"{self.prefix}mlp.experts.{number}.{part}.weight"

    def problems(self):
        """What the checkpoint lacks of this unit."""
        c = self.run.checkpoint
        for module, attribute, name in self.parts():
            if not self.zero(name):
                yield c.problem(name, list(getattr(module, attribute).shape))
        if self.stacked:
            for part in self.stacks:
                count, rows, cols = getattr(self.experts, part).shape
                apart = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
                if self.whole(part):
                    yield c.problem(self.whole(part), [count, rows, cols])
                elif all(map(self.whole, apart)):
                    for p in apart:
                        yield c.problem(self.whole(p), [count, rows // len(apart), cols])
                else:
                    for number in range(self.expert_count()):
                        for p in apart:
                            yield c.problem(self.expert(number, p), [rows // len(apart), cols])
        elif self.experts is not None and not self.run.training:
            for number, expert in enumerate(self.experts):
                for m, attribute, name in self.parts(expert, f"{self.prefix}mlp.experts.{number}."):
                    yield c.problem(name, list(getattr(m, attribute).shape))

    def fill(self, parts):
        for module, attribute, name in parts:
            if name in self.run.tied:
                module._parameters[attribute] = self.run.tied[name]
                continue
            dtype = self.dtype_of(name)
            t = torch.zeros(getattr(module, attribute).shape, dtype=dtype) if self.zero(name) else self.weight(name, dtype)
            if attribute in module._buffers:
                module._buffers[attribute] = t
            else:
                module._parameters[attribute] = torch.nn.Parameter(t, requires_grad=self.run.training)
                if self.run.training and self is self.run.embedding:
                    self.run.tied[name] = module._parameters[attribute]

    def dtype_of(self, name):
        """The dtype that the reference keeps a weight in, noted if that is not the compute dtype."""
        dtype = self.run.reference.dtype_of(name)
        if dtype != self.run.reference.dtype:
            self.run.kept.add(kind_of(name))
        return dtype

    def zero(self, name):
        """Whether the reference takes a weight that the checkpoint lacks to be 0, as transformers does."""
        c, optional = self.run.checkpoint, getattr(self.run.model, "_keys_to_ignore_on_load_missing", None) or []
        return c.resolve(name) not in c.where and any(re.search(pattern, name) for pattern in optional if pattern.startswith("e_score"))

    def weight(self, name, dtype, part=None):
        """A weight as the reference has it, where it runs."""
        return self.run.checkpoint.weight(name, dtype, part).to(self.run.reference.device)

    @staticmethod
    def empty(parts):
        for module, attribute, _ in parts:
            for store in (module._parameters, module._buffers):
                if attribute in store:
                    store[attribute] = store[attribute].to("meta")

    def load(self):
        self.fill(self.parts())
        if hasattr(self.module, "self_attn"):
            self.run.reference.restore_rotary(self.module)
        if self.stacked:
            for part in self.stacks:
                self.experts._parameters.pop(part, None)
                setattr(self.experts, part, self.experts_of(part))
        elif self.experts is not None and not self.run.training:
            for number, expert in enumerate(self.experts):
                self.lazy.append(expert.register_forward_pre_hook(
                    lambda m, x, n=number: self.fill(self.parts(m, f"{self.prefix}mlp.experts.{n}."))))
                self.lazy.append(expert.register_forward_hook(lambda m, x, out: self.empty(self.parts(m, ""))))

    def experts_of(self, part):
        """What stands for the stacked weights of experts: they themselves, where all are multiplied with at once."""
        if self.run.reference.experts == "eager":
            return Stack(self.stack, self.run.watch, part)
        return torch.stack([self.stack(part, number) for number in range(self.expert_count())])

    def stack(self, part, number):
        """One expert of a stack."""
        dtype = self.dtype_of(self.prefix + "mlp.experts." + part)
        if self.whole(part):
            return self.weight(self.whole(part), dtype, number)
        if part != "gate_up_proj":
            return self.weight(self.expert(number, part), dtype)
        apart = ("gate_proj", "up_proj")
        return torch.cat([self.weight(self.whole(p), dtype, number) if self.whole(p) else self.weight(self.expert(number, p), dtype)
                          for p in apart])

    def whole(self, part):
        """The name of the stored tensor with a matrix of all experts; None if each has its own."""
        name = f"{self.prefix}mlp.experts.{part}"
        return name if self.run.checkpoint.resolve(name) in self.run.checkpoint.where else None

    def unload(self):
        for h in self.lazy:
            h.remove()
        self.lazy = []
        for part in self.stacks:
            setattr(self.experts, part, None)
        self.empty(self.parts())
        if hasattr(self.module, "self_attn") and not self.run.reference.one_rotary:
            self.module.self_attn.rotary_emb.to("meta")


class Block(torch.nn.Module):
    """The MLP of a decoder layer, the norm before it and the norms behind it, under the layer's own names but for the MLP's."""

    def __init__(self, layer, norms):
        super().__init__()
        self.norms, self.mlp = norms, self.mlp_of(layer)
        for norm in norms:
            name, _, first_of_list = norm.partition(".")
            module = layer.get_submodule(norm)
            setattr(self, name, torch.nn.ModuleList([module]) if first_of_list else module)

    @staticmethod
    def mlp_of(layer):
        """The MLP of a layer; None if its one module is another."""
        mlp = layer.mlp if hasattr(layer, "mlp") else layer.mixer
        return mlp if hasattr(mlp, "experts") or hasattr(mlp, "down_proj") else None

    def forward(self, x):
        x = self.mlp(self.get_submodule(self.norms[0])(x))
        for norm in self.norms[1:]:
            x = self.get_submodule(norm)(x)
        return x


class Skipped(torch.nn.Module):
    """Stands for a layer that is not recorded."""

    def __init__(self, tuple_like, with_keys):
        super().__init__()
        self.tuple_like, self.with_keys = tuple_like, with_keys

    def forward(self, hidden_states, *args, **kwargs):
        if self.with_keys:  # those of an indexer, for layers that share them
            return hidden_states, kwargs.get("prev_topk_indices")
        return (hidden_states,) if self.tuple_like else hidden_states


class Blank(torch.nn.Module):
    """Stands for an embedding that no recorded layer sees."""

    def __init__(self, reference):
        super().__init__()
        self.size, self.dtype = reference.config.hidden_size, reference.dtype

    def forward(self, ids):
        return torch.zeros(*ids.shape, self.size, dtype=self.dtype, device=ids.device)


class Replay(torch.autograd.Function):
    """A layer in training: forward without a graph, backward by running it again with one, so
    that one layer's weights are in memory at a time."""

    @staticmethod
    def forward(ctx, hidden, call, again):
        ctx.save_for_backward(hidden)
        ctx.again = again
        return call(hidden)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.again(ctx.saved_tensors[0], gradient), None, None


# ---------------------------------------------------------------------------------------------
# The run


class Run:
    """One pass of the reference over the tokens, recorded."""

    def __init__(self, a, checkpoint, reference, ids, mask, progress):
        self.a, self.checkpoint, self.reference, self.progress = a, checkpoint, reference, progress
        self.ids, self.mask, self.training = ids, mask, a.train
        self.recorder = Recorder(a.stages, reference.dtype, ids.shape[1], a.attn)
        self.watch = Watch(self.recorder)
        self.watch.block = a.block
        self.model, self.base = reference.model, reference.decoder
        self.count = len(reference.layers)
        self.chosen = layer_list(a.layers, self.count)
        self.norms = BLOCKS[reference.cls.__name__] if a.block else None  # of --block
        self.without = [n for n, layer in enumerate(reference.layers) if a.block and not Block.mlp_of(layer)]  # an MLP
        self.chosen = [n for n in self.chosen if n not in self.without]
        if not self.chosen:
            raise Trouble(f"--layers {a.layers}: none of these layers has an MLP")
        self.tables, self.unwritten, self.embedded, self.normed = {}, {}, None, None
        self.probes = {}  # of layers: rows and experts of probes
        self.layer_inputs = {}  # of layers whose input is in the pack: where it is from
        self.kept = set()  # weights in float32 beside a narrower compute dtype, as kinds
        self.tied = {}  # in training the embedding's weight, which a tied head shares
        self.ends = (STREAMS if hasattr(self.base, "hc_head") else []) + HEAD  # stages behind the last layer
        ends = not a.block and (self.training or a.mtp or any(map(self.recorder.wanted, self.ends)))
        self.head_name, self.last = "lm_head.output", ends and self.count - 1 in self.chosen
        self.mtp = self.prediction_layers()
        if not a.block:
            self.embedding = Unit(self, self.base.embed_tokens, "model.embed_tokens.", "embed")
            self.norm = Unit(self, self.base.norm, "model.norm.", "head", ends_file=False)
        self.streams = Unit(self, self.base.hc_head, "model.hc_head.", "head", ends_file=False) if len(self.ends) > len(HEAD) else None
        tied = not a.block and (self.last or 0 in self.chosen) and self.ties()
        self.head = Unit(self, self.model.lm_head, "model.embed_tokens." if tied else "lm_head.", "head")
        stored = lambda path: path.replace("mlp.post_mlp_layernorm", "post_mlp_layernorm")  # A.X-K1's name in files
        of = lambda layer: Block(layer, self.norms) if a.block else layer
        self.layers = {n: Unit(self, of(reference.layers[n]), f"model.layers.{n}.", f"layer-{n:03d}", stored) for n in self.chosen}
        self.check()

    def ties(self):
        """Whether the head computes with the embedding's weight: not if another one is stored and from_pretrained takes that."""
        c, head, embedding = self.checkpoint, "lm_head.weight", "model.embed_tokens.weight"
        if not self.reference.config.tie_word_embeddings:
            return False
        if c.resolve(head) not in c.where or c.resolve(embedding) not in c.where:
            return True
        a, b = c.read(head), c.read(embedding)
        if a.dtype == b.dtype and torch.equal(a, b):
            return True
        if self.reference.kind == "remote":
            raise Trouble(f"{c.path}: tie_word_embeddings is true, but {head} is stored, with other numbers than {embedding}: the published "
                          "code keeps one of the two for both, the one that it reads last; take it out, or set tie_word_embeddings to false")
        return False

    def prediction_layers(self):
        """The reference's model of the multi-token prediction layers, if they are wanted."""
        if not self.a.mtp:
            return None
        from transformers.modeling_layers import MtpModel
        number, tokens = getattr(self.reference.config, "num_mtp_layers", None) or 0, self.ids.shape[1]
        if not number:
            raise Trouble(f"--mtp: {self.checkpoint.at('config.json')}: the model has no prediction layers: num_nextn_predict_layers is "
                          "missing or 0")
        absent = sorted(set(range(self.count, self.count + number)) - self.checkpoint.layers())
        if absent:
            raise Trouble(f"--mtp: {self.checkpoint.path}: the checkpoint holds no weight of prediction layers that config.json "
                          f"announces: {', '.join(map(str, absent))}")
        if tokens < number + 2:
            raise Trouble(f"--mtp: sequences of {tokens} tokens: at least {number + 2}, since config.json announces {number} to predict")
        with torch.device("meta"):
            model = MtpModel(self.model, number)
        model.eval()
        return model

    def shared_keys(self):
        """For each layer whether it shares the keys of an indexer before it; None where no layer can."""
        types = getattr(self.reference.config, "indexer_types", None)
        return types and [t == "shared" for t in types]

    def check(self):
        """Refuses a checkpoint that lacks weights, all problems at once."""
        for n in self.chosen if self.shared_keys() else []:
            full = max(l for l in range(n + 1) if not self.shared_keys()[l])
            if full not in self.chosen:
                raise Trouble(f"--layers: layer {n} shares the keys that layer {full}'s indexer chooses: record that layer, too")
        units = list(self.layers.values()) + [self.prediction(k) for k in range(len(self.mtp.layers) if self.mtp else 0)]
        if 0 in self.layers and not self.a.block or self.mtp:
            units.append(self.embedding)
        if self.last:
            units += [u for u in (self.streams, self.norm, self.head) if u]
        together([p for u in units for p in u.problems() if p])

    def prediction(self, k):
        n = self.count + k
        renamed = lambda path: path.removeprefix("mtp_block.").replace("post_norm.", "shared_head.norm.")
        return Unit(self, self.mtp.layers[k], f"model.layers.{n}.", f"layer-{n:03d}", renamed, ends_file=False)

    def unrecorded(self):
        """Layers of the checkpoint that are not in the pack."""
        present = set(self.chosen) | ({self.count + k for k in range(len(self.mtp.layers))} if self.mtp else set())
        return sorted((self.checkpoint.layers() | set(range(self.count))) - present - set(self.without))

    def few_tokens(self):
        """Says where sequences are too short for V4's compressors: an entry is made of a window of tokens, or of two that overlap."""
        rates, types, seq = getattr(self.reference.config, "compress_rates", {}), getattr(self.reference.config, "layer_types", None), self.ids.shape[1]
        needs = {n: (2 if types[n] == "compressed_sparse_attention" else 1) * rates[types[n]] for n in self.chosen if rates and types[n] in rates}
        for need in sorted({need for need in needs.values() if need > seq}):
            layers = ", ".join(str(n) for n in needs if needs[n] == need)
            print(f"{CLEAR}golden.py: sequences of {seq} token{'s' * (seq != 1)}: the compressors of layers {layers} need at least {need} to exercise all "
                  "their weights: dsmoe verify will find the pack inconclusive", file=sys.stderr)

    def go(self, pack):
        self.pack = pack
        torch.set_num_threads(self.a.threads)
        if self.a.device == "cuda":  # no partial sums in 16 bits: which of a product's are, torch does not tell
            matmul = torch.backends.cuda.matmul
            matmul.allow_bf16_reduced_precision_reduction = matmul.allow_fp16_reduced_precision_reduction = False
        self.install()
        self.progress.begin("recording", len(self.chosen) * (2 if self.training else 1) + (len(self.mtp.layers) if self.mtp else 0))
        try:
            with torch.enable_grad() if self.training else torch.no_grad(), self.watch:
                loss = self.forward()
                if self.training:
                    self.backward(loss)
                if self.mtp:
                    self.predict()
        except (Trouble, KeyboardInterrupt):
            raise
        except Exception as e:
            at = traceback.extract_tb(e.__traceback__)[-1]
            raise Trouble(f"{self.reference.cls.__name__}: running the reference: {type(e).__name__}: {reason(e)} ({at.filename}:{at.lineno})") from e
        self.write_inputs(loss)

    def install(self):
        """Puts stand-ins and hooks into the model."""
        if self.a.block:
            for n, unit in self.layers.items():
                self.run_as_one(unit, lambda out: None, functools.partial(self.hooks, unit.module, f"model.layers.{n}"), self.progress.add)
            return
        for n in range(self.count):
            if n in self.layers:
                self.install_layer(n)
            else:
                self.base.layers[n] = Skipped(self.reference.kind == "remote", self.shared_keys() is not None)
        if 0 in self.layers:
            self.run_as_one(self.embedding, lambda out: self.embed(out))
        else:
            setattr(self.base, "word_embeddings" if hasattr(self.base, "word_embeddings") else "embed_tokens", Blank(self.reference))
        if self.last and self.streams:
            self.base.hc_head.register_forward_pre_hook(lambda m, x: setattr(self.watch, "mixing", "model.hc_head"))
            self.run_as_one(self.streams, self.collapsed)
        elif self.streams:
            self.base.hc_head = torch.nn.Identity()
        if self.last:
            self.run_as_one(self.norm, self.normalised)
            self.run_as_one(self.head, lambda out: self.recorder.take(self.head_name, out))
        else:
            self.base.norm = torch.nn.Identity()
        if self.reference.one_rotary:
            self.base.rotary_emb.register_forward_hook(
                lambda m, x, options, out: self.rotary(out, options.get("layer_type")), with_kwargs=True)

    def embed(self, out):
        if not self.recorder.again:
            self.embedded = out.detach()
        self.recorder.take("model.embed_tokens.output", out)

    def collapsed(self, out):
        self.watch.mixing = ""
        self.recorder.take("model.hc_head.output", out)

    def normalised(self, out):
        if not self.recorder.again:
            self.normed = out.detach()
        self.recorder.take("model.norm.output", out)

    def run_as_one(self, unit, take, hooks=lambda: None, after=lambda: None):
        """Loads a unit before it runs, records it, runs it again if that is asked for, unloads it."""
        state = {}

        def before(module, args, kwargs):
            if self.recorder.again:
                return None
            unit.load()
            state["hooks"] = hooks()
            return self.seeded(unit, args, kwargs)

        def behind(module, args, kwargs, out):
            take(first(out))
            if self.recorder.again:
                return
            taken, routing = self.recorder.taken(), self.watch.routing
            if self.a.repeat:
                self.repeat(lambda: module(*args, **kwargs), taken)
            if state["hooks"]:
                state["hooks"].remove()
            taken |= self.probe(unit, taken, routing)
            if not self.training or unit.file.startswith("layer-"):
                unit.unload()
            self.unwritten |= taken
            if unit.ends_file:
                self.pack.write(unit.file, self.unwritten)
                self.unwritten = {}
            after()

        unit.module.register_forward_pre_hook(before, with_kwargs=True)
        unit.module.register_forward_hook(behind, with_kwargs=True)

    def repeat(self, run, taken):
        """Runs something again with another number of threads."""
        self.recorder.again = True
        torch.set_num_threads(self.other_threads())
        try:
            with torch.no_grad():
                run()
        finally:
            torch.set_num_threads(self.a.threads)
            self.recorder.again = False
        self.recorder.compare(taken, self.recorder.taken())

    def probe(self, unit, taken, routing):
        """Runs the experts that no token chose on some rows of what the layer gave its experts, one after
        the other. An expert needs no router, and what it gives no hooks: those are off by now."""
        normed = taken.get(f"{unit.prefix}{self.norms[0] if self.norms else 'post_attention_layernorm'}.output")
        if unit.experts is None or normed is None or self.training or self.a.no_probes or not self.recorder.wanted(PROBE):
            return {}
        real, x = self.real_rows(normed.shape[1]), taken.get(f"{unit.prefix}mlp.fc1_latent_proj.output", normed)
        x = x.reshape(-1, x.shape[-1])  # what experts take, perhaps in a latent space
        rows, probed, experts = probe_rows(x, real), {}, []
        for number in unchosen(*routing, real, unit.expert_count()) if rows else []:
            name, out = f"{unit.prefix}mlp.experts.{number}.probe.output", unit.run_expert(number, x[rows])
            if not torch.isfinite(out).all():  # the reference gives it no such rows
                print(f"{CLEAR}golden.py: {name}: not finite in {out.dtype}: this expert is not probed", file=sys.stderr)
                continue
            self.recorder.take(name, out)
            taken = self.recorder.taken()
            if self.a.repeat:
                self.repeat(lambda: self.recorder.take(name, unit.run_expert(number, x[rows])), taken)
            probed |= taken
            experts.append(number)
        self.watch.forget()
        if experts:
            self.probes[unit.prefix.split(".")[2]] = {"rows": rows, "experts": experts}
        return probed

    def real_rows(self, seq):
        """Which rows of a layer, seq of them in each sequence, are not padding. In prediction layers, which have
        fewer, a row is made of several tokens."""
        rows = torch.arange(self.ids.shape[0] * seq)
        if self.mask is None:
            return rows
        return rows[self.mask.unfold(1, self.mask.shape[1] - seq + 1, 1).amin(-1).reshape(-1) != 0]

    def other_threads(self):
        return 2 if self.a.threads == 1 else 1

    def install_layer(self, n):
        unit, name = self.layers[n], f"model.layers.{n}"
        if self.training:
            self.replayed(unit)
        self.run_as_one(unit, lambda out: self.recorder.take(name + ".output", out), lambda: self.hooks(unit.module, name), self.progress.add)

    def hooks(self, layer, name):
        return Hooks(layer, name, self.recorder, self.watch, None if self.reference.one_rotary else self.rotary)

    def rotary(self, out, kind=None):
        """Takes the rotary tables of a kind, which must be the same in all layers."""
        if self.head_name != "lm_head.output":
            return  # prediction layers have positions of their own
        cos, sin = (out.real, out.imag) if isinstance(out, torch.Tensor) else out
        tables = [(t[0] if t.dim() == 3 else t).detach().clone() for t in (cos, sin)]
        kind = f"model.rotary_emb.{kind}." if kind else "model.rotary_emb."
        first = self.tables.setdefault(kind, tables)
        if not all(map(torch.equal, first, tables)):
            raise Trouble("rotary_emb: a later layer has other tables than the first")

    def seeded(self, unit, args, kwargs):
        """Gives a layer its input where no recorded one leads to it, and notes it."""
        m = re.fullmatch(r"model\.layers\.(\d+)\.", unit.prefix)
        if not m or int(m[1]) >= self.count or self.a.block:
            return None
        n = int(m[1])
        hidden = args[0] if args else kwargs["hidden_states"]
        before = f"model.layers.{n - 1}.output" if n else "model.embed_tokens.output"
        if n and n - 1 not in self.layers:
            g = torch.Generator().manual_seed(self.a.seed + n)
            hidden = torch.randn(hidden.shape, generator=g).to(hidden.device, hidden.dtype)
            self.layer_inputs[str(n)] = {"kind": "seeded", "seed": self.a.seed + n,
                                         "values": "torch.randn, float32, mean 0 and deviation 1, cast to the compute dtype"}
        elif self.recorder.wanted(kind_of(before)):
            return None
        else:
            self.layer_inputs[str(n)] = {"kind": "recorded", "is": before}
        self.recorder.now[f"model.layers.{n}.input"] = on_cpu(hidden)
        return ((hidden, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": hidden})

    def forward(self):
        device = self.reference.device
        ids, mask = self.ids.to(device), None if self.mask is None else self.mask.to(device)
        if self.a.block:
            for n, unit in self.layers.items():
                g = torch.Generator().manual_seed(self.a.seed + n)
                unit.module(torch.randn(*ids.shape, self.reference.config.hidden_size, generator=g).to(device, self.reference.dtype))
            return None
        options = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
        if self.reference.kind == "remote" and not self.training:
            options["output_attentions"] = self.a.attn == "eager" and self.recorder.wanted("self_attn.attn_weights")
        if self.training:
            return self.model(labels=ids, **options).loss
        (self.model if self.last else self.base)(**options)
        return None

    # Training

    def replayed(self, unit):
        """Makes a layer forget its graph, and run again in the backward pass."""
        original = unit.module.forward

        def forward(hidden_states, *args, **kwargs):
            call = lambda h: first(original(h, *args, **kwargs))
            return (Replay.apply(hidden_states, call, lambda h, g: self.again(unit, call, h, g)),)

        unit.module.forward = forward

    def again(self, unit, call, hidden, gradient):
        """The layer's backward pass: takes the gradients of its stages and weights, returns its input's."""
        name = unit.prefix.removesuffix(".")
        before = [n for n in self.recorder.now if not n.startswith(unit.prefix)]  # of the head, behind the last layer
        self.unwritten |= {n: self.recorder.now.pop(n) for n in before}
        unit.load()
        hooks = self.hooks(unit.module, name)
        self.recorder.backward = True
        with torch.enable_grad(), self.watch:  # autograd leaves the modes of the caller
            h = hidden.detach().requires_grad_()
            torch.autograd.backward(call(h), gradient)
        self.recorder.backward = False
        hooks.remove()
        self.take_gradients([unit])
        unit.unload()
        self.pack.write("grad-" + unit.file, self.recorder.taken())
        self.progress.add()
        return h.grad

    def take_gradients(self, units):
        for unit in units:
            for module, attribute, name in unit.parts():
                weight = module._parameters.get(attribute)
                if weight is not None and weight.grad is not None:
                    self.recorder.take(name + ".grad", weight.grad)

    def backward(self, loss):
        if self.reference.config.attention_dropout:
            raise Trouble("config.json: attention_dropout: a training pack needs 0: give --override attention_dropout=0")
        loss.backward()
        self.take_gradients([self.embedding])
        self.pack.write("grad-embed", self.recorder.taken())
        self.take_gradients([self.norm] if self.reference.config.tie_word_embeddings else [self.norm, self.head])
        self.pack.write("grad-head", self.unwritten | self.recorder.taken())

    # Multi-token prediction

    def predict(self):
        """Runs prediction layer k over the embeddings of the tokens k + 1 further on."""
        hidden, seq = self.normed, self.ids.shape[1]
        for k in range(len(self.mtp.layers)):
            n, name, unit = seq - 1 - k, f"model.layers.{self.count + k}", self.prediction(k)
            self.head_name = name + ".shared_head.head.output"
            module = unit.module
            for part, path in {"enorm": ".enorm", "hnorm": ".hnorm", "eh_proj": ".eh_proj", "mtp_block": "", "post_norm": ".shared_head.norm"}.items():
                getattr(module, part).register_forward_hook(
                    lambda m, x, out, stage=f"{name}{path}.output": self.recorder.take(stage, first(out)))
            self.run_as_one(unit, lambda out: None, lambda: self.hooks(module.mtp_block, name), self.progress.add)
            positions = torch.arange(k + 1, k + 1 + n, device=self.reference.device)[None]
            hidden = self.mtp.forward_layer(k, hidden[:, :n], positions, None, inputs_embeds=self.embedded[:, k + 1:])
            self.head.file = unit.file
            self.mtp._project_to_logits(hidden)

    # What is left

    def write_inputs(self, loss):
        inputs = {"input_ids": self.ids}
        if self.mask is not None:
            inputs["attention_mask"] = self.mask
        if loss is not None:
            self.recorder.take("loss", loss.detach().reshape(1))
        self.pack.write("inputs", inputs | self.recorder.taken())
        for kind, tables in self.tables.items():
            for name, t in zip(("cos", "sin"), tables):
                self.recorder.take(kind + name, t)
        self.pack.write("rotary", self.recorder.taken())

    def manifest(self, origin):
        a, r = self.a, self.recorder
        m = {"format": "golden/1", "reference": self.reference.describe(a, self.checkpoint), "mode": "train" if a.train else "eval",
             "compute_dtype": a.dtype, "made_by": "model.to(dtype)" if a.cast else "from_pretrained(checkpoint, dtype)",
             "recorder": {"name": "golden.py", "sha256": "sha256:" + sha256(os.path.abspath(__file__)), "arguments": sys.argv[1:]},
             "input": origin, "seed": a.seed}
        if self.reference.dtype != torch.float32:
            m["kept_float32"] = sorted(self.kept)
        if a.override:
            m["config_overrides"] = a.override
        if a.train:
            m["loss"] = ("cross entropy of logits[:, :-1] against input_ids[:, 1:], mean; .grad tensors (every weight) "
                         "include the auxiliary losses")
        if self.mtp:
            m["mtp"] = {"layers": [self.count + k for k in range(len(self.mtp.layers))],
                        "tokens": "depth k: previous hidden state of position t, embedding of token t+1+k, rope position t+1+k, t = 0..seq-2-k"}
        if a.block:
            m["block"] = {"layers": self.chosen, "input": self.norms[0] + ".output",
                          "values": f"of {self.norms[0]} on torch.randn, mean 0 and deviation 1, seeded with seed + layer"}
        ends = [] if a.block else ([] if 0 in self.layers else ["model.embed_tokens.output"]) + ([] if self.last else self.ends)
        absent = {k: v for k, v in (("layers", self.unrecorded()), ("stages", ends + r.absent() + r.absorbed())) if v}
        if absent:
            m["absent"] = absent
        if set(absent.get("layers", [])) & set(range(self.count)) or set(absent.get("stages", [])) - {*INNER, *r.absorbed()}:
            m["partial"] = "layers or stages were left out on purpose: see absent"
        if a.block:
            m["partial"] = "the MLPs alone: dsmoe does not compute attention of this class"
        if self.layer_inputs:
            m["layer_inputs"] = self.layer_inputs
        if self.probes:
            m["probes"] = self.probes
        m |= {field: gaps for field, gaps in r.gaps.items() if gaps or field == "router_gap_min"}
        if a.repeat:
            m["noise_threads"], m["noise"] = self.other_threads(), r.noise
        return m | {"config": self.checkpoint.whole, "checkpoint": self.checkpoint.hashes(self.progress)}


class Progress:
    """What is done and the time left, on stderr."""

    def __init__(self):
        self.terminal, self.last = CLEAR != "", 0.0

    def begin(self, what, total):
        self.what, self.total, self.done, self.start = what, total, 0, time.monotonic()
        announce(what)

    def add(self, n=1):
        self.done += n
        now = time.monotonic()
        if now - self.last < (0.2 if self.terminal else 10) and self.done < self.total:
            return
        self.last = now
        left = (now - self.start) / max(self.done, 1) * (self.total - self.done)
        share = f"{self.done} of {self.total}" if self.total < 10000 else f"{100 * self.done // self.total} %"
        text = f"golden.py: {self.what}: {share}, {int(left) // 60}:{int(left) % 60:02d} left"
        if self.terminal and self.done < self.total:
            draw(text)
        else:
            print(CLEAR + text, file=sys.stderr, flush=True)


class Shuffled:
    """A checkpoint with the channels of the residual stream, the neurons and the vocabulary in another order: the same
    function of the tokens, under other ids, whose sums are taken in other orders."""

    SEEDS = {"channels": 1, "neurons": 2, "vocabulary": 3}

    def __init__(self, checkpoint):
        self.checkpoint = checkpoint

    def __getattr__(self, name):
        return getattr(self.checkpoint, name)

    @staticmethod
    def axes(name):
        """What the axes of a weight are."""
        module, kind = name.split(".")[-2:]
        if module in ("gate_proj", "up_proj"):
            return "neurons", "channels"
        if module == "down_proj":
            return "channels", "neurons"
        if module == "o_proj" or module.endswith("norm"):
            return ("channels",)
        if module in ("embed_tokens", "lm_head"):
            return "vocabulary", "channels"
        return (None, "channels") if kind == "weight" else ()

    def order(self, what, n):
        return torch.randperm(n, generator=torch.Generator().manual_seed(self.SEEDS[what]))

    def tokens(self, ids, vocab):
        """The ids of the same tokens."""
        return torch.argsort(self.order("vocabulary", vocab))[ids]

    def moved(self, name, t, order=lambda order: order):
        for axis, what in enumerate(self.axes(name)):
            if what:
                t = t.index_select(axis, order(self.order(what, t.shape[axis])))
        return t

    def weight(self, name, dtype, part=None):
        return self.moved(name, self.checkpoint.weight(name, dtype, part))


class Spread:
    """Stands for the pack of a shuffled run: notes how far its gradients are from those of the first."""

    def __init__(self, pack, shuffled):
        self.pack, self.shuffled, self.noise = pack, shuffled, {}

    def write(self, file, tensors):
        for name, t in tensors.items():
            if name.endswith(".grad") and name in self.pack.tensors:
                with safe_open(os.path.join(self.pack.work, file + ".safetensors"), "pt") as f:
                    first = f.get_tensor(name).double()
                d, size = self.shuffled.moved(name.removesuffix(".grad"), t, torch.argsort).double() - first, first.norm().item()
                self.noise[name] = {"max_abs": d.abs().max().item(), "rel_rms": d.norm().item() / size if size else 0.0}


def spread_of_gradients(a, checkpoint, ids, mask, progress, pack):
    """How far rounding moves the gradient of each weight: the reference runs again with its sequences, channels, neurons
    and vocabulary in another order, and with another number of threads."""
    a = argparse.Namespace(**vars(a) | {"stages": ["*.weight.grad", "*.bias.grad"], "repeat": False, "threads": 2 if a.threads == 1 else 1})
    shuffled, reference = Shuffled(checkpoint), Reference(a, checkpoint)
    spread, ids = Spread(pack, shuffled), shuffled.tokens(ids, reference.config.vocab_size).flip(0)
    Run(a, shuffled, reference, ids, None if mask is None else mask.flip(0), progress).go(spread)
    return spread.noise


def record(a):
    checkpoint = Checkpoint(a.checkpoint)
    reference = Reference(a, checkpoint)
    ids, mask, origin = tokens_of(a, checkpoint, reference.config.vocab_size)
    progress = Progress()
    run = Run(a, checkpoint, reference, ids, mask, progress)
    run.few_tokens()
    pack = Pack(a.pack)
    try:
        run.go(pack)
        if a.repeat and a.train:
            run.recorder.noise |= spread_of_gradients(a, checkpoint, ids, mask, progress, pack)
        pack.finish(run.manifest(origin))
    except BaseException:
        pack.abandon()
        raise
    batch, seq = ids.shape
    goldens = [n for n in pack.tensors if n not in ("input_ids", "attention_mask") and not re.fullmatch(r"model\.layers\.\d+\.input", n)]
    print(f"{pack.path}: {batch} x {seq} tokens in {a.dtype}, {len(goldens)} golden tensors of {reference.cls.__name__} "
          f"({reference.kind}), {len(run.chosen)} of {run.count} layers")


def main():
    handle(interrupt)
    transformers.logging.set_verbosity_error()
    draw("")
    a = arguments(sys.argv[1:])
    announce("building the reference")
    try:
        record(a)
    except Trouble as e:
        print(f"{CLEAR}golden.py: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return interrupted()
    return 0


if __name__ == "__main__":
    sys.exit(main())
