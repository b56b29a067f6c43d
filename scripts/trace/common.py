

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
    r"model\.(embed_tokens|norm)|lm_head|model\.layers\.\d+(\.(input_layernorm|post_attention_layernorm"
    r"|self_attn(\.(q_proj|k_proj|v_proj|q_a_proj|q_a_layernorm|q_b_proj|kv_a_proj_with_mqa|kv_a_layernorm|kv_b_proj|o_proj"
    r"|indexer\.(wq_b|wk|k_norm|weights_proj)))?|mlp(\.(shared_experts))?(\.(gate_proj|up_proj))?|mlp\.experts))?")
GIVEN = re.compile(r"model\.layers\.\d+\.(self_attn\.o_proj|mlp\.(shared_experts\.)?down_proj)")


class Stages:
    """Puts what modules gave into a pack: [batch, seq, width], of gates and experts [tokens, width]."""

    def __init__(self, pack, shape, stages):
        self.pack, self.shape, self.router = pack, shape, stages == "router"

    def module(self, name, output, given):
        """Takes a module's output and input, where they are stages; the functions return arguments of Pack.add."""
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
        if name.endswith(".experts.output"):
            return self.rows(name, array, dtype)
        self.pack.add(name, array.reshape(*self.shape, -1), dtype)

    def keep(self, name, array, dtype=None):
        """Takes what router-only traces lack, in the shape that it has."""
        if not self.router:
            self.pack.add(name, array, dtype)

    def keys(self, name, chosen):
        """Takes an indexer's choice of keys [batch, seq, k]; -1 stands for keys that causality hides."""
        hidden = chosen > np.arange(chosen.shape[1])[None, :, None]
        self.keep(name + ".topk_idx", np.where(hidden, -1, chosen))

    def rows(self, name, array, dtype=None):
        self.pack.add(name, array.reshape(-1, array.shape[-1]), dtype)


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
    p.add_argument("--stages", choices=["all", "router"], default="all", help="router: each gate's input, logits, choices and weights alone")
    p.add_argument("--untried-versions", action="store_true", help="go on with versions of the engine not tried with this")
    return p


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
