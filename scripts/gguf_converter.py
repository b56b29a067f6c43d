#!/usr/bin/env python3
"""Checks that `dsmoe convert --to gguf` writes what llama.cpp's own converter writes.

    git clone https://github.com/ggml-org/llama.cpp /tmp/llama.cpp
    /tmp/gguf/bin/pip install torch transformers sentencepiece
    /tmp/gguf/bin/python scripts/gguf_converter.py /tmp/llama.cpp /tmp/dsmoe fixtures/kimi-k2/checkpoint …
    /tmp/gguf/bin/python scripts/gguf_converter.py --hashes convert/gguf/testdata/deepseek4.txt …

Both convert each CHECKPOINT to F32 and BF16, DeepSeek-V4, for which the converter has one type, to that, without a vocabulary: the converter knows tokenizers by what they make
of a text, and those of the fixtures make something else. Tensors must have the same names, types, shapes and bytes,
and the keys but those of a vocabulary the same values. OURS and THEIRS list the keys that only one of the two
writes, with the reason. --hashes writes the converter's tensors: name, type, shape and sha256. The exit status is 1 if
anything else differs.
"""
import contextlib
import hashlib
import io
import json
import logging
import pathlib
import subprocess
import sys
import tempfile

OURS = {
    "general.quantization_version": "llama.cpp's quantiser wants it",
    "dsmoe.widened.BF16": "which tensors are F32 in GGUF only",
    "deepseek2.expert_gating_func": "GLM-4.7-Flash and V2-Lite do not say it, and llama.cpp guesses it by layers and vocabulary",
    "deepseek4.vocab_size": "a file without a vocabulary has no other place for it",
    "deepseek2.attention.q_lora_rank": "0: llama.cpp takes no model but those of V2-Lite's sizes without the key",
}
THEIRS = {
    "tokenizer.ggml.model": "none: no vocabulary",
    "tokenizer.chat_template": "of llama.cpp's own for DeepSeek-V4, whose checkpoints have none",
    "GGUF.version": "of the header", "GGUF.tensor_count": "of the header", "GGUF.kv_count": "of the header",
}


def theirs(source, out, kind):
    """The file of llama.cpp's converter."""
    import convert_hf_to_gguf as converter
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    logging.disable(logging.CRITICAL)
    model = get_model_class(get_model_architecture(ModelBase.load_hparams(source, False), ModelType.TEXT))
    set_vocab, model.set_vocab = model.set_vocab, lambda self: self._set_vocab_none()
    sys.argv = ["convert_hf_to_gguf.py", str(source), "--outfile", str(out), "--outtype", kind, "--model-name", "model"]
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            converter.main()
    finally:
        model.set_vocab = set_vocab
    return out


def contents(path):
    import gguf
    reader = gguf.GGUFReader(path)
    keys = {f.name: f.contents() for f in reader.fields.values()}
    return keys, {t.name: (t.tensor_type.name, [int(n) for n in t.shape], t.data.tobytes()) for t in reader.tensors}


def differences(ours, theirs):
    (a, x), (b, y) = contents(ours), contents(theirs)
    for name in sorted(set(x) | set(y)):
        if name not in x or name not in y:
            yield f"tensor {name}: {'not ours' if name not in x else 'only ours'}"
        elif x[name] != y[name]:
            yield f"tensor {name}: {x[name][:2]}, theirs {y[name][:2]}, equal bytes: {x[name][2] == y[name][2]}"
    for key in sorted(set(a) | set(b)):
        if key in OURS and key not in b or key in THEIRS:
            continue
        if a.get(key) != b.get(key):
            yield f"key {key}: {json.dumps(a.get(key))}, theirs {json.dumps(b.get(key))}"


def main():
    arguments = sys.argv[1:]
    hashes = arguments[1] if arguments[0] == "--hashes" else None
    source, dsmoe, *checkpoints = arguments[2:] if hashes else arguments
    sys.path[:0] = [source, source + "/gguf-py"]
    failed = compared = 0
    for checkpoint in map(pathlib.Path, checkpoints):
        v4 = json.loads((checkpoint / "config.json").read_text())["model_type"] == "deepseek_v4"
        for kind in ("q8_0",) if v4 else ("f32", "bf16"):
            with tempfile.TemporaryDirectory() as tmp:
                ours, model = pathlib.Path(tmp) / "ours.gguf", pathlib.Path(tmp) / "model"
                model.symlink_to(checkpoint.absolute())  # the converter takes keys from the directory's name
                subprocess.run([dsmoe, "convert", checkpoint, ours, "--type", kind, "--name", "model"], check=True, stdout=subprocess.DEVNULL)
                made = theirs(model, pathlib.Path(tmp) / "theirs.gguf", kind)
                found = list(differences(ours, made))
                if hashes:
                    lines = [f"{n} {t} {s} {hashlib.sha256(b).hexdigest()}\n" for n, (t, s, b) in sorted(contents(made)[1].items())]
                    pathlib.Path(hashes).write_text("".join(lines))
                compared += len(contents(ours)[1])
                failed += len(found)
                print(f"{checkpoint} {kind}: {len(found)} differences", *found, sep="\n  ")
    print(f"{compared} tensors compared, {failed} differences")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
