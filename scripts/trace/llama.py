"""Records a trace of llama.cpp: what it computes on a GGUF file, as a pack that `dsmoe verify MODEL.gguf PACK` judges.

llama.cpp runs the tokens on the CPU, in one batch or in steps. Its eval callback (cb_eval) shows the result of each operation: of each
product and norm under the name of its weight, of the gates the choices and weights, of the layers the outputs. Needs
llama-cpp-python and numpy. The pack declares what llama.cpp rounds the inputs of products to, for each stored form, and
how its cache and attention round.

  pip install llama-cpp-python==0.3.36

examples:
  python trace.py model.gguf pack --random 1x48
  python trace.py model.gguf pack --tokens tokens.json --cache f32
  python trace.py model.gguf pack --random 1x48 --prefill 24              24 tokens at once, then 24 steps of one
  python trace.py model.gguf pack --random 3x16 --greedy 8 --stagger 2    three prompts, two steps apart, then 8 tokens each
  python trace.py model.gguf pack --random 1x48 --stages router

exit status:
  0    PACK is written, complete
  2    it is not: bad input, a missing file, a wrong flag, a version that was not tried
  130  interrupted
"""
import argparse
import ctypes
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile

# llama.cpp's threads meet behind each operation; those that spin there, beside other work, took 20 times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
TRIED = ["0.3.36"]  # versions of llama-cpp-python with which traces were recorded and judged
try:
    import llama_cpp as llama
    import numpy as np
except (ImportError, OSError, RuntimeError) as e:
    print(f"trace.py: {' '.join(str(e).split())}: pip install llama-cpp-python=={TRIED[0]}", file=sys.stderr)
    sys.exit(2)

# What the CPU backend rounds the input of a product to, by the stored form of the weight: vec_dot_type of its
# type_traits_cpu. The minimum of a block of Q5_1 is multiplied with the sum of a block, which Q8_1 stores.
ROUNDS = {"F32": "f32", "F16": "f16", "BF16": "bf16", "Q5_1": "q8_1"}
ROUNDS |= dict.fromkeys(["Q4_0", "Q5_0", "Q8_0", "IQ4_NL"], "q8_0")
ROUNDS |= dict.fromkeys(["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"], "q8_k")
CACHES = {"f32": llama.GGML_TYPE_F32, "f16": llama.GGML_TYPE_F16, "q8_0": llama.GGML_TYPE_Q8_0}
ELEMENTS = {0: np.float32, 1: np.float16, 26: np.int32}  # by enum ggml_type
STAGES = {"l_out": "output", "ffn_out": "mlp.output", "ffn_moe_out": "mlp.experts.output"}  # by the graph's name of a node
INPUTS = ("attn_output", "ffn_down", "ffn_down_shexp")  # weights whose product's input is a stage, too


class Tensor(ctypes.Structure):
    """struct ggml_tensor of ggml.h, which is no API: Ggml.check compares it with what ggml's functions say."""


Tensor._fields_ = [("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4),
                   ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32),
                   ("src", ctypes.POINTER(Tensor) * 10), ("view_src", ctypes.POINTER(Tensor)), ("view_offs", ctypes.c_size_t),
                   ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64)]


class Ggml:
    """The functions of ggml, which libllama is linked with."""

    def __init__(self):
        lib, pointer = llama.llama_cpp._lib, ctypes.POINTER(Tensor)  # libllama's handle finds what it is linked with
        for name, result, arguments in (
                ("init", ctypes.c_void_p, [self.Params]), ("free", None, [ctypes.c_void_p]),
                ("new_tensor_2d", pointer, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]),
                ("mul_mat", pointer, [ctypes.c_void_p, pointer, pointer]), ("transpose", pointer, [ctypes.c_void_p, pointer]),
                ("set_name", pointer, [pointer, ctypes.c_char_p]),
                ("op_name", ctypes.c_char_p, [ctypes.c_int]), ("type_name", ctypes.c_char_p, [ctypes.c_int]),
                ("nbytes", ctypes.c_size_t, [pointer]),
                ("backend_tensor_get", None, [pointer, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t])):
            f = getattr(lib, "ggml_" + name)
            f.restype, f.argtypes = result, arguments
            setattr(self, name, f)
        self.check()

    class Params(ctypes.Structure):
        _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]

    def check(self):
        """Makes tensors with ggml's functions, and refuses a library whose tensors do not read as Tensor says."""
        context = self.init(self.Params(1 << 16, None, True))
        a, b = self.new_tensor_2d(context, 1, 3, 5), self.new_tensor_2d(context, 0, 3, 7)
        self.set_name(a, b"first")
        product, view = self.mul_mat(context, a, b), self.transpose(context, a)
        p, v, same = product.contents, view.contents, lambda x, y: ctypes.addressof(x.contents) == ctypes.addressof(y.contents)
        good = (list(p.ne) == [5, 7, 1, 1] and list(p.nb) == [4, 20, 140, 140] and p.type == 0 and self.op_name(p.op) == b"MUL_MAT"
                and same(p.src[0], a) and same(p.src[1], b) and not p.src[2] and p.src[0].contents.name == b"first"
                and p.src[0].contents.type == 1 and self.type_name(1) == b"f16" and self.type_name(26) == b"i32"
                and list(v.ne) == [5, 3, 1, 1] and list(v.nb) == [6, 2, 30, 30] and same(v.view_src, a) and v.view_offs == 0)
        self.free(context)
        if not good:
            raise Trouble(f"llama-cpp-python {llama.__version__}: struct ggml_tensor has another layout than in {' or '.join(TRIED)}")

    def array(self, t):
        """A tensor's values: numpy's array of the shape that ggml lists backwards."""
        kind = ELEMENTS.get(t.contents.type)
        if kind is None:
            raise Trouble(f"{t.contents.name.decode()}: a result in {self.type_name(t.contents.type).decode()}: f32, f16 or i32 expected")
        data = np.empty(self.nbytes(t), np.uint8)
        self.backend_tensor_get(t, data.ctypes.data, 0, data.nbytes)
        return np.lib.stride_tricks.as_strided(data.view(kind), t.contents.ne[::-1], t.contents.nb[::-1]).copy()


class Graph:
    """The eval callback: which results are taken, and under which names."""

    def __init__(self, ggml, batch, stages):
        self.ggml, self.batch, self.stages = ggml, batch, stages
        self.problem, self.forms, self.absorbed = None, set(), False
        self.routed = set()  # layers whose choices of this step were taken

    def callback(self, address, ask, _):
        """llama.cpp's question whether a node's result is wanted, and then its result; False ends the run."""
        t = ctypes.cast(address, ctypes.POINTER(Tensor))
        try:
            take = self.wanted(t.contents)
            if ask:
                return take is not None
            if take is not None:
                take(t)
        except BaseException as e:  # an exception does not pass through llama.cpp
            self.problem = self.problem or e
        return self.problem is None or ask

    def wanted(self, t):
        """The function that takes the node's result, or None."""
        op, sources = self.ggml.op_name(t.op).decode(), [s.contents.name.decode() if s else "" for s in t.src[:3]]
        weight = re.fullmatch(r"((?:blk\.\d+\.)?(\w+))\.weight", sources[1 if op == "MUL" else 0])
        if op in ("MUL_MAT", "MUL_MAT_ID") and weight:
            self.forms.add(self.ggml.type_name(t.src[0].contents.type).decode().upper())
            self.absorbed |= weight[2] == "attn_k_b"
        if op == "MUL_MAT_ID" and weight:
            return lambda node: self.choices(weight[1].split(".")[1], node.contents.src[2])
        if op in ("MUL_MAT", "MUL", "GET_ROWS") and weight and weight[2] not in ("attn_k_b", "attn_v_b"):
            if self.stages == "all" or weight[2] == "ffn_gate_inp" or op == "GET_ROWS":
                return lambda node: self.output(node, op, weight[1], weight[2])
        bias = re.fullmatch(r"((?:blk\.\d+\.)?\w+)\.bias", sources[1])
        if op == "ADD" and bias and self.stages == "all" and self.product(t.src[0].contents) == bias[1] + ".weight":
            return lambda node: self.biased(node, bias[1] + ".output")
        if op == "MUL" and sources[0].startswith("ffn_moe_down-"):
            return lambda node: self.weights(node.contents)
        name, _, layer = t.name.decode().rpartition("-")
        if name in STAGES and layer.isdigit() and self.stages == "all":
            return lambda node: self.take(f"model.layers.{layer}.{STAGES[name]}", self.ggml.array(node), last=name == "l_out" and layer)
        return None

    def output(self, node, op, name, role):
        if op == "GET_ROWS":
            self.tokens(self.ggml.array(node.contents.src[1]))
            if self.stages == "router":
                return
        if op == "MUL_MAT" and role == "token_embd":
            name = "output"  # a head that is the embedding
        self.take(name + ".output", self.ggml.array(node))
        if self.stages == "router":
            self.take(name.replace("ffn_gate_inp", "ffn_norm") + ".output", self.ggml.array(node.contents.src[1]))
        if role in INPUTS:
            self.take(name + ".input", self.ggml.array(node.contents.src[1]))

    def product(self, t):
        """The name of the weight that t is a product with; "" of others."""
        return t.src[0].contents.name.decode() if self.ggml.op_name(t.op).decode() == "MUL_MAT" else ""

    def biased(self, node, name):
        """Takes a product with its bias, in place of the product."""
        self.take(name, self.ggml.array(node), again=True)

    def tokens(self, ran):
        """Refuses a run of other tokens than the step's, or in another order."""
        if not np.array_equal(ran.reshape(-1), self.batch.ids.reshape(-1)[self.batch.rows]):
            raise Trouble("llama.cpp cut the tokens of a step into several batches, or changed their order")

    def take(self, name, array, last=None, again=False):
        rows = len(self.batch.rows)
        heads = re.search(r"\.attn_[qk]_norm\.output$", name) and array.shape[-3] == rows  # a norm of each head
        rest = array.shape[-2:] if heads else (array.size // rows,)
        self.batch.add(name, array.reshape(rows, *rest), flat=".ffn_gate_inp." in name or ".mlp.gate." in name or ".experts." in name,
                       again=again)
        if last:
            self.batch.pack.flush(f"layer-{int(last):03d}")

    def choices(self, layer, chosen):
        """Takes the choices of experts, which three products of a layer are given."""
        if layer not in self.routed:
            self.take(f"model.layers.{layer}.mlp.gate.topk_idx", self.ggml.array(chosen).astype(np.int64))
            self.routed.add(layer)

    def weights(self, t):
        """Takes the weights that the experts' outputs are multiplied with."""
        layer = t.src[0].contents.name.decode().rpartition("-")[2]
        self.take(f"model.layers.{layer}.mlp.gate.topk_weight", self.ggml.array(t.src[1]), last=self.stages == "router" and layer)


def arguments():
    p = parser("MODEL.gguf", "trace.py MODEL.gguf PACK (--random BxT | --tokens FILE) [flags]")
    p.add_argument("--cache", choices=list(CACHES), default="f16", help="dtype of the KV cache (default f16, as llama.cpp's)")
    p.add_argument("--flash", action="store_true", help="flash attention")
    p.add_argument("--stagger", type=count, metavar="K", default=0, help="each sequence begins K steps after the one before (default: together)")
    return p.parse_args()


def record(a):
    tried(a, "llama-cpp-python", llama.__version__, TRIED)
    ggml, log = Ggml(), []
    say = llama.llama_log_callback(lambda level, text, _: log.append(text.decode(errors="replace")) if level == 4 else None)
    llama.llama_log_set(say, ctypes.c_void_p(0))
    if not os.path.isfile(a.model):
        raise Trouble(f"{a.model}: no file on this disk")
    with Pack(a.pack) as pack:
        params = llama.llama_model_default_params()
        params.n_gpu_layers = 0
        model = llama.llama_model_load_from_file(os.fsencode(a.model), params)
        if not model:
            raise Trouble(f"{a.model}: llama.cpp does not load it: {reason(''.join(log) or 'no reason given')}")
        ids, origin = tokens_of(a, llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model)))
        batch = Batch(pack, ids, a)
        graph = Graph(ggml, batch, a.stages)
        arch = ctypes.create_string_buffer(64)
        llama.llama_model_meta_val_str(model, b"general.architecture", arch, len(arch))
        if arch.value.startswith(b"nemotron_h"):  # whose layers are one module: l_out is that without the residual
            STAGES["l_out"] = STAGES["ffn_out"]
        threads = os.cpu_count() or 1
        run(a, model, graph, threads, log)
        batch.finish()
        pack.finish(manifest(a, graph, origin, threads))
    print(batch.told())


def run(a, model, graph, threads, log):
    """Runs the steps, each as one batch."""
    ids, steps = graph.batch.ids, graph.batch.steps()
    batch_size, seq = ids.shape
    callback = llama.ggml_backend_sched_eval_callback(graph.callback)
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.kv_unified = batch_size * seq, batch_size, True
    params.n_batch = params.n_ubatch = batch_size * seq
    params.n_threads = params.n_threads_batch = threads
    params.type_k = params.type_v = CACHES[a.cache]
    params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED if a.flash else llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.offload_kqv = params.op_offload = False
    params.cb_eval = callback
    context = llama.llama_init_from_model(model, params)
    if not context:
        raise Trouble(f"{a.model}: llama.cpp does not run it so: {reason(''.join(log) or 'no reason given')}")
    vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    for spans in steps:
        graph.routed.clear()
        batch = llama.llama_batch_init(len(graph.batch.rows), 0, 1)
        batch.n_tokens = len(graph.batch.rows)
        for i, row in enumerate(graph.batch.rows):
            batch.token[i], batch.pos[i], batch.logits[i] = int(ids.flat[row]), row % seq, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, row // seq
        status = llama.llama_decode(context, batch)
        llama.llama_batch_free(batch)
        if graph.problem:
            raise graph.problem
        if status != 0:
            raise Trouble(f"{a.model}: llama_decode: status {status}: {reason(''.join(log) or 'no reason given')}")
        ends = np.cumsum([end - begin for _, begin, end in spans])
        for (sequence, _, end), last in zip(spans, ends):
            if graph.batch.prompt <= end < seq:
                logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, int(last) - 1), (vocab,))
                ids[sequence, end] = logits.argmax()


def manifest(a, graph, origin, threads):
    attention = ["flash" if a.flash else "eager"] + ["absorbed"] * graph.absorbed
    m = {"reference": {"kind": "engine", "name": "llama.cpp", "version": f"llama-cpp-python {llama.__version__}", "device": "cpu",
                       "threads": threads, "recorded": "cb_eval"},
         "compute_dtype": "float32", "recorder": {"name": "trace.py", "sha256": "sha256:" + sha256(__file__), "arguments": sys.argv[1:]},
         "input": origin, "steps": graph.batch.entries, "checkpoint": {os.path.basename(a.model): "sha256:" + sha256(a.model)}}
    if a.stages == "router":
        return m | {"partial": "router only"}
    rounds = {form: ROUNDS[form] for form in sorted(graph.forms) if form in ROUNDS}
    # Flash attention casts K and V of F32 to F16; the CPU backend's keeps the running context, and takes queries, in F16 below
    # 64 tokens (GGML_FA_TILE_Q).
    sums = {"f16" if a.flash and a.cache != "q8_0" and e["rows"] < 64 else "f32" for e in graph.batch.entries}
    cache = "f16" if a.flash and a.cache == "f32" else a.cache
    m["arithmetic"] = {"activations": rounds, "cache": cache, "attention": attention} | ({"sums": sums.pop()} if len(sums) == 1 else {})
    return m


