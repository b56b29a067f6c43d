

# ---------------------------------------------------------------------------------------------
# What all recorders share: problems, tokens, the pack, the command line


class Trouble(Exception):
    """What the user must know: which file, which tensor, why. Exit status 2."""


class Pack:
    """Files under a hidden sibling of the pack's name, which becomes the pack when it is complete."""

    DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"}
    SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8}  # bytes of an element

    def __init__(self, path):
        self.path = os.path.normpath(path)
        if os.path.lexists(self.path):
            raise Trouble(f"{self.path}: exists already: remove it or give another name")
        self.parent, self.work = os.path.dirname(self.path) or ".", None
        if not os.path.isdir(self.parent):
            raise Trouble(f"{self.parent}: no directory on this disk")
        self.files, self.tensors, self.pending = {}, {}, {}

    def add(self, name, array, dtype=None):
        """Takes a tensor, a numpy array; dtype names the elements where numpy has no such type (BF16 in uint16)."""
        array = np.ascontiguousarray(array)
        dtype = dtype or self.DTYPES.get(str(array.dtype))
        if dtype is None:
            raise Trouble(f"{name}: dtype {array.dtype}: a pack holds {', '.join(self.DTYPES)}")
        self.put(name, dtype, array.shape, [array])

    def put(self, name, dtype, shape, pieces):
        """Takes a tensor whose bytes are read off pieces when flush writes them."""
        if name in self.tensors or name in self.pending:
            raise Trouble(f"{name}: the engine gave this stage twice: the tokens must run as one batch")
        self.pending[name] = (dtype, list(shape), pieces)

    def directory(self):
        """The directory that becomes the pack. It is made when the engine gave results: one that aborts leaves nothing."""
        if self.work is None:
            self.work = tempfile.mkdtemp(prefix=f".{os.path.basename(self.path)}.partial-", dir=self.parent)
        return self.work

    def flush(self, file):
        """Writes the tensors taken since the last call to one safetensors file."""
        if not self.pending:
            return
        file += ".safetensors"
        header, offset = {}, 0
        for name, (dtype, shape, _) in self.pending.items():
            end = offset + int(np.prod(shape)) * self.SIZES[dtype]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
            self.tensors[name] = {"file": file, "dtype": dtype, "shape": shape}
            offset = end
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        digest = hashlib.sha256()
        try:
            with open(os.path.join(self.directory(), file), "wb") as f:
                for piece in itertools.chain([len(head).to_bytes(8, "little"), head], *(pieces for _, _, pieces in self.pending.values())):
                    f.write(piece)
                    digest.update(piece)
                f.flush()
                os.fsync(f.fileno())
        except OSError as e:
            raise Trouble(f"{os.path.join(self.path, file)}: not written: {reason(e)}") from None
        self.files[file] = "sha256:" + digest.hexdigest()
        self.pending = {}

    def finish(self, manifest):
        """Writes the manifest, last, and gives the pack its name. A pack of nothing is refused."""
        if not set(self.tensors) - {"input_ids", "attention_mask"}:
            raise Trouble("nothing that ran has the name of a stage: no model of this kind")
        manifest = {"format": "golden/1", "mode": "eval"} | manifest | {"files": self.files}
        tensors = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in self.tensors.items())  # a line for each
        lines = [f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in manifest.items()]
        try:
            with open(os.path.join(self.work, "manifest.json"), "w", encoding="utf-8") as f:
                f.write("{\n" + ",\n".join([*lines, ' "tensors": {\n' + tensors + "\n }"]) + "\n}\n")
                f.flush()
                os.fsync(f.fileno())
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(self.work, 0o777 & ~mask)  # mkdtemp gives its owner alone any permission
            os.rename(self.work, self.path)
        except OSError as e:
            raise Trouble(f"{self.path}: not written: {reason(e)}") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.work:
            shutil.rmtree(self.work, ignore_errors=True)  # nothing is left of a pack that is not finished


# Modules whose output, or input, is a stage of a pack; other recorders than llama.cpp's take stages by modules.
MODULE = re.compile(
    r"model\.(embed_tokens|norm)|lm_head|model\.layers\.\d+(\.(norm|input_layernorm|post_attention_layernorm(\.0)?|(pre|post)_(mlp|feedforward)_layernorm"
    r"|self_attn(\.(q_proj|k_proj|v_proj|q_a_proj|q_a_layernorm|q_b_proj|kv_a_proj_with_mqa|kv_a_layernorm|kv_b_proj|o_proj"
    r"|indexer\.(wq_b|wk|k_norm|weights_proj)))?|mlp(\.(shared_experts))?(\.(gate_proj|up_proj))?|mlp\.(experts|shared_expert_gate|fc[12]_latent_proj)))?")
GIVEN = re.compile(r"model\.layers\.\d+\.(self_attn\.o_proj|mlp\.(shared_experts\.)?down_proj)")


class Batch:
    """Tokens [batch, seq] that an engine runs in one step or in several, and the rows of stages that the steps give: in
    files beside the pack until all steps ran, and of one step of all tokens in the pack at once."""

    def __init__(self, pack, ids, a):
        prompt, greedy = ids.shape[1], getattr(a, "greedy", 0)
        self.pack, self.prompt, self.ids = pack, prompt, np.pad(ids, ((0, 0), (0, greedy)))
        self.first, self.chunk, self.stagger = a.prefill or prompt, a.chunk, getattr(a, "stagger", 0)
        self.entries, self.rows, self.waiting, self.left = [], [], {}, {}

    def steps(self):
        """Yields the rows of each step, spans (sequence, from, to), and notes them for the manifest. Behind the prompt comes
        a token at a time, which the engine's user puts into ids."""
        (batch, seq), done, turn, number = self.ids.shape, [0] * len(self.ids), 0, 0
        while min(done) < seq:
            spans = []
            for b in range(batch):
                if turn >= b * self.stagger and done[b] < seq:
                    to = min(self.prompt, done[b] + (self.chunk if done[b] else self.first)) if done[b] < self.prompt else done[b] + 1
                    spans.append((b, done[b], to))
                    done[b] = to
            turn += 1
            if spans:
                self.rows = [b * seq + i for b, begin, end in spans for i in range(begin, end)]
                for b, begin, end in spans:
                    phase = "prefill" if not begin else "decode" if self.chunk == 1 or begin >= self.prompt else "chunk"
                    self.entries.append({"sequence": b, "from": begin, "to": end, "phase": phase, "step": number, "rows": len(self.rows),
                                         "requests": len(spans)})
                yield spans
                number += 1

    def add(self, name, array, dtype=None, flat=False, again=False):
        """Takes the step's rows of a stage [rows, ...]; flat: the pack has the tokens of all sequences in one axis; again: in
        the place of those that the step gave before."""
        lead = (self.ids.size,) if flat else self.ids.shape
        array = np.ascontiguousarray(array).reshape(len(self.rows), *array.shape[1:])
        if len(self.rows) == self.ids.size:
            if again:
                self.pack.pending.pop(name, None)
            return self.pack.add(name, array.reshape(*lead, *array.shape[1:]), dtype)
        path = os.path.join(self.pack.directory(), f"{len(self.waiting)}.rows")
        path, _, kind, shape, _, there = stage = self.waiting.setdefault(
            name, (path, dtype, array.dtype, array.shape[1:], lead, np.zeros(self.ids.size, bool)))
        if (dtype, array.dtype, array.shape[1:]) != stage[1:4]:
            self.left[name] = "its dtype or width changes"
            return
        if there[self.rows].any() and not again:
            raise Trouble(f"{name}: the engine gave this stage twice in a step")
        there[self.rows] = True
        np.memmap(path, kind, "r+" if os.path.exists(path) else "w+", shape=(self.ids.size, *shape))[self.rows] = array

    def finish(self):
        """Writes the stages that several steps gave, by layers, and returns why others are left out, by name."""
        groups = {}
        for name, (path, dtype, kind, shape, lead, there) in self.waiting.items():
            if not there.all():
                self.left.setdefault(name, f"{there.size - there.sum()} of {there.size} rows were not computed")
            layer = re.match(r"(?:model\.layers|blk)\.(\d+)\.", name)
            groups.setdefault(f"layer-{int(layer[1]):03d}" if layer else "rest", []).append(name)
        for group, names in sorted(groups.items()):
            for name in names:
                path, dtype, kind, shape, lead, _ = self.waiting[name]
                if name not in self.left:
                    self.pack.put(name, dtype or Pack.DTYPES[str(kind)], (*lead, *shape), (np.memmap(p, np.uint8, "r") for p in [path]))
            self.pack.flush(group)
            for name in names:
                os.remove(self.waiting[name][0])
        self.pack.flush("rest")
        self.pack.add("input_ids", self.ids)
        self.pack.flush("inputs")
        return self.left

    def told(self):
        """What was recorded and left out, in words."""
        steps = len({e["step"] for e in self.entries})
        words = f"{self.pack.path}: {self.ids.shape[0]} x {self.ids.shape[1]} tokens in {steps} step{'s' * (steps > 1)}, {len(self.pack.tensors)} tensors"
        kinds = {re.sub(r"^(model\.layers|blk)\.\d+\.", "", name): why for name, why in self.left.items()}
        return "\n".join([words, *(f"left out: {kind}: {why}" for kind, why in sorted(kinds.items()))])


class Stages:
    """Puts what modules gave into a pack: [batch, seq, width], of gates and experts [tokens, width]."""

    def __init__(self, batch, stages):
        self.batch, self.router = batch, stages == "router"

    def module(self, name, output, given):
        """Takes a module's output and input, where they are stages; the functions return arguments of tokens."""
        if self.router:
            return
        if MODULE.fullmatch(name):
            self.tokens(name + ".output", *output())
        if GIVEN.fullmatch(name):
            self.tokens(name + ".input", *given())

    def gate(self, name, given):
        """Takes a gate's input, which all traces but router-only ones have as the output of a norm."""
        if self.router:
            self.tokens(name.removesuffix("mlp.gate") + "post_attention_layernorm.output", *given())

    def tokens(self, name, array, dtype=None):
        """Takes a row for each token."""
        self.batch.add(name, array.reshape(len(self.batch.rows), -1), dtype, flat=name.endswith(".experts.output") or ".mlp.gate." in name)

    def keep(self, name, array, dtype=None):
        """Takes what router-only traces lack, [batch, tokens, ...] in the shape that it has."""
        if not self.router:
            self.batch.add(name, array.reshape(-1, *array.shape[2:]), dtype)

    def keys(self, name, chosen):
        """Takes an indexer's choice of keys [batch, tokens, k]; -1 stands for keys that causality hides."""
        positions = np.array(self.batch.rows).reshape(*chosen.shape[:2], 1) % self.batch.ids.shape[1]
        self.keep(name + ".topk_idx", np.where(chosen > positions, -1, chosen))


def reason(e):
    """An exception's text in one line, without the path that the message has already."""
    return " ".join((e.strerror if isinstance(e, OSError) and e.strerror else str(e)).split()) or type(e).__name__


def tokens_of(a, vocab):
    """input_ids [batch, seq] of --random or --tokens, and where they came from, for the manifest."""
    if a.random:
        m = re.fullmatch(r"(\d+)x(\d+)", a.random)
        if not m or not int(m[1]) or not int(m[2]):
            raise Trouble(f"--random: {a.random!r}: BxT expected, such as 1x48")
        return np.random.default_rng(0).integers(vocab, size=(int(m[1]), int(m[2]))), {"kind": "random", "seed": 0}
    ids, mask = file_tokens(a.tokens)
    if mask is not None and not (mask == 1).all():
        raise Trouble(f"{a.tokens}: attention_mask: engines take no padding: give sequences of one length")
    if ids.ndim != 2 or 0 in ids.shape:
        raise Trouble(f"{a.tokens}: input_ids: shape {list(ids.shape)}, [batch, seq] expected")
    bad = ids[(ids < 0) | (ids >= vocab)]
    if bad.size:
        raise Trouble(f"{a.tokens}: input_ids: {bad[0]} is not in the vocabulary of {vocab}")
    return ids, {"kind": "file", "sha256": "sha256:" + sha256(a.tokens)}


def file_tokens(path):
    """input_ids and attention_mask, or None, of a JSON or safetensors file, as `dsmoe golden --tokens` reads them."""
    try:
        if path.endswith(".safetensors"):
            found = safetensors_of(path, ("input_ids", "attention_mask"))
        else:
            with open(path, encoding="utf-8") as f:
                found = json.load(f)
            found = found if isinstance(found, dict) else {"input_ids": found}
        if "input_ids" not in found:
            raise ValueError("no input_ids")
        ids, mask = (whole_numbers(found.get(k)) for k in ("input_ids", "attention_mask"))
        ids, mask = (t if t is None or t.ndim != 1 else t[None] for t in (ids, mask))
        return ids.astype(np.int64), mask
    except Exception as e:
        raise Trouble(f"{path}: {reason(e)}") from None


def whole_numbers(value):
    """An array of whole numbers; None of None."""
    try:
        array = None if value is None else np.asarray(value)
    except ValueError:  # lists of several lengths
        array = np.zeros(0)
    if array is not None and array.dtype.kind not in "iu":
        raise ValueError("whole numbers expected, in sequences of one length")
    return array


def safetensors_of(path, names):
    """The tensors of whole numbers with these names."""
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
        found = {}
        for name in names:
            if name in header:
                entry = header[name]
                begin, end = entry["data_offsets"]
                f.seek(8 + size + begin)
                kind = {"I64": "<i8", "I32": "<i4", "U8": "u1"}.get(entry["dtype"])
                if kind is None:
                    raise ValueError(f"{name}: dtype {entry['dtype']}: whole numbers expected")
                found[name] = np.frombuffer(f.read(end - begin), kind).reshape(entry["shape"])
        return found


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 24):
            h.update(block)
    return h.hexdigest()


def parser(model, usage):
    """The command line's arguments that recorders share."""
    head, examples = __doc__.split("\n\nexamples:")
    p = argparse.ArgumentParser(prog="trace.py", usage=usage, description=head, epilog="examples:" + examples,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", metavar=model)
    p.add_argument("pack", metavar="PACK", help="directory to write; it must not exist")
    tokens = p.add_mutually_exclusive_group(required=True)
    tokens.add_argument("--random", metavar="BxT", help="B sequences of T tokens drawn from the whole vocabulary, always the same")
    tokens.add_argument("--tokens", metavar="FILE", help="JSON, [[ids], ...] or {\"input_ids\": ...}, or a safetensors file with input_ids, "
                        "such as a pack's inputs.safetensors")
    p.add_argument("--prefill", type=count, metavar="N", help="tokens of each sequence that run in its first step (default all)")
    p.add_argument("--chunk", type=count, metavar="M", default=1, help="tokens of each sequence that run in each later step (default 1)")
    p.add_argument("--greedy", type=count, metavar="G", default=0, help="tokens that follow, each the likeliest, in steps of their own")
    p.add_argument("--stages", choices=["all", "router"], default="all", help="router: each gate's input, logits, choices and weights alone")
    p.add_argument("--untried-versions", action="store_true", help="go on with versions of the engine not tried with this")
    return p


def count(word):
    """A number of at least 1, for argparse."""
    if not word.isdecimal() or not int(word):
        raise argparse.ArgumentTypeError(f"{word!r}: a number from 1 on expected")
    return int(word)


def tried(a, name, version, versions):
    """Refuses a version of the engine that was not tried."""
    if version not in versions and not a.untried_versions:
        raise Trouble(f"{name} {version} was not tried with this: install {' or '.join(versions)}, or give --untried-versions")


def main():
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) != signal.SIG_IGN:  # as nohup has it
            signal.signal(getattr(signal, name), signal.default_int_handler)
    try:
        record(arguments())
    except Trouble as e:
        print(f"trace.py: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("trace.py: interrupted: nothing is left of the pack", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
