#!/usr/bin/env python3
"""Checks that `dsmoe convert --to gguf` writes what llama.cpp's own converter writes.

    git clone https://github.com/ggml-org/llama.cpp /tmp/llama.cpp
    /tmp/gguf/bin/pip install torch transformers sentencepiece
    /tmp/gguf/bin/python scripts/gguf_converter.py /tmp/llama.cpp /tmp/dsmoe fixtures/kimi-k2/checkpoint …
    /tmp/gguf/bin/python scripts/gguf_converter.py --hashes convert/gguf/testdata/deepseek4.txt …

Both convert each CHECKPOINT to F32 and BF16, DeepSeek-V4 to the one type that the converter has for it, without a
vocabulary. Tensors must have the same names, types, shapes and bytes, and the keys the same values. A checkpoint of
Kimi or GLM is converted a third time, with a small vocabulary of the kind of theirs: the converter knows tokenizers by
what they make of a text, and is told their names. OURS and THEIRS list the keys that only one of the two writes, with
the reason, KNOWN those that differ for a reason, which is printed. --hashes writes the converter's tensors, of BF16 where
there are several types: name, type, shape and sha256. The exit status is 1 if anything else differs.
"""
import base64
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
    "deepseek32.expert_gating_func": "transformers' configs do not say it, and llama.cpp does not load the file without it",
    "glm-dsa.expert_gating_func": "the same",
    "deepseek4.vocab_size": "a file without a vocabulary has no other place for it",
    "deepseek2.attention.q_lora_rank": "0: llama.cpp takes no model but those of V2-Lite's sizes without the key",
    **{f"{arch}.{key}": why for arch in ("glm4moe", "dots1", "hy_v3", "minimax-m2", "exaone-moe", "ernie4_5-moe", "bailingmoe2") for key, why in {
        "vocab_size": "a file without a vocabulary has no other place for it",
        "attention.key_length": "without head_dim in config.json llama.cpp takes each head's share",
        "attention.value_length": "the same",
        "rope.scaling.yarn_beta_fast": "the class's default", "rope.scaling.yarn_beta_slow": "the same",
        "expert_group_count": "1, the class's default", "expert_group_used_count": "the same"}.items()},
    "dots1.expert_gating_func": "the converter refuses the published scoring_func, which the class does not read",
    "exaone-moe.expert_gating_func": "llama.cpp does not load the file without it",
}
THEIRS = {
    "tokenizer.ggml.model": "none: no vocabulary",
    "tokenizer.chat_template": "of llama.cpp's own for DeepSeek-V4, whose checkpoints have none",
    "GGUF.version": "of the header", "GGUF.tensor_count": "of the header", "GGUF.kv_count": "of the header",
}

# Keys whose difference is known: whether it is the known one, and why.
KNOWN = {
    "deepseek2.leading_dense_block_count": (
        lambda config, ours, theirs: "first_k_dense_replace" not in config and theirs == 0
        and ours == (config.get("mlp_layer_types") or []).count("dense") > 0,
        "the converter does not read mlp_layer_types, and writes 0 without first_k_dense_replace"),
    **{f"tokenizer.ggml.{key}_token_id": (
        lambda config, ours, theirs, name=name: f"{name}_token_id" not in config and theirs is None,
        "the converter finds no number of a token that neither tokenizer.json nor config.json has")
       for key, name in {"padding": "pad", "unknown": "unk"}.items()},
    **{f"{arch}.nextn_predict_layers": (
        lambda config, ours, theirs: ours is None and theirs == 0,
        "0 is what llama.cpp takes without the key") for arch in ("glm4moe", "exaone-moe", "bailingmoe2")},
}

GLM = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GLM_TOKENS = ["<|endoftext|>", "[MASK]", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
BYTES = [bytes([b]) for b in b"abcdehlnortu \n\xe4\xb8\xad"]
MERGED = [b"ab", b" a", b"he", b"ll", b"hell", b"hello", b" hello", b"\xe4\xb8", b"\xe4\xb8\xad", b"the", b"\n\n"]


class Kimi:
    """What the converter takes of the tokenizer that tokenization_kimi.py makes of tiktoken.model."""

    def __init__(self, path):
        lines = (path / "tiktoken.model").read_text().splitlines()
        self._mergeable_ranks = {base64.b64decode(token): int(rank) for token, rank in map(str.split, lines)}
        self.model = self
        named = json.loads((path / "tokenizer_config.json").read_text())["added_tokens_decoder"]
        first = len(lines)
        self.special_tokens = {named.get(str(i), {"content": f"<|reserved_token_{i}|>"})["content"]: i for i in range(first, first + 258)}


def small_vocabulary(model):
    """Adds a small vocabulary of the model's kind to its directory; its pre-tokenizer's name, or None for other models."""
    config = json.loads((model / "config.json").read_text())
    if config["model_type"].startswith("kimi"):
        words, first = BYTES + MERGED, len(BYTES + MERGED)
        (model / "tiktoken.model").write_text("".join(f"{base64.b64encode(w).decode()} {i}\n" for i, w in enumerate(words)))
        named = {0: "[BOS]", 1: "[EOS]", 3: "<|im_end|>", 8: "<think>", 9: "[PAD]"}
        settings = {"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}, "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]", "unk_token": "<|im_end|>",
                    "added_tokens_decoder": {str(first + i): {"content": c, "special": c != "<think>"} for i, c in named.items()}, "chat_template": "{{ messages }}"}
        (model / "tokenizer_config.json").write_text(json.dumps(settings))
        return "kimi-k2"
    if config["model_type"] not in ("glm4_moe", "glm4_moe_lite", "glm_moe_dsa"):
        return None
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    letters = sorted("abcdehlnortuĠĊ") + ["Ġa", "he", "ll"]
    tokenizer = Tokenizer(models.BPE({x: i for i, x in enumerate(letters)}, [("Ġ", "a"), ("h", "e"), ("l", "l")], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(GLM), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(x, special=True, normalized=False) for x in GLM_TOKENS])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    tokenizer.save(str(model / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "additional_special_tokens": GLM_TOKENS}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    (model / "chat_template.jinja").write_text("[gMASK]<sop>")
    return "glm4"


def theirs(source, out, kind, pre):
    """The file of llama.cpp's converter, with a vocabulary if its pre-tokenizer has a name."""
    import convert_hf_to_gguf as converter
    import transformers
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    logging.disable(logging.CRITICAL)
    model = get_model_class(get_model_architecture(ModelBase.load_hparams(source, False), ModelType.TEXT))
    before = model.set_vocab, model.get_vocab_base_pre, transformers.AutoTokenizer.from_pretrained
    if pre is None:
        model.set_vocab = lambda self: self._set_vocab_none()
    model.get_vocab_base_pre = lambda self, tokenizer: pre
    if pre == "kimi-k2":
        transformers.AutoTokenizer.from_pretrained = lambda path, **_: Kimi(path)
    sys.argv = ["convert_hf_to_gguf.py", str(source), "--outfile", str(out), "--outtype", kind, "--model-name", "model"]
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            converter.main()
    finally:
        model.set_vocab, model.get_vocab_base_pre, transformers.AutoTokenizer.from_pretrained = before
    return out


def contents(path):
    import gguf
    reader = gguf.GGUFReader(path)
    keys = {f.name: f.contents() for f in reader.fields.values()}
    return keys, {t.name: (t.tensor_type.name, [int(n) for n in t.shape], t.data.tobytes()) for t in reader.tensors}


def differences(ours, theirs, config):
    """What differs, and whether that is known."""
    (a, x), (b, y) = contents(ours), contents(theirs)
    for name in sorted(set(x) | set(y)):
        if name not in x or name not in y:
            yield f"tensor {name}: {'not ours' if name not in x else 'only ours'}", False
        elif x[name] != y[name]:
            yield f"tensor {name}: {x[name][:2]}, theirs {y[name][:2]}, equal bytes: {x[name][2] == y[name][2]}", False
    for key in sorted(set(a) | set(b)):
        if key in OURS and key not in b or key in THEIRS:
            continue
        if a.get(key) != b.get(key):
            holds, why = KNOWN.get(key, (lambda *_: False, ""))
            known = holds(config, a.get(key), b.get(key))
            yield f"key {key}: {json.dumps(a.get(key))}, theirs {json.dumps(b.get(key))}{': known: ' + why if known else ''}", known


def main():
    arguments = sys.argv[1:]
    hashes = arguments[1] if arguments[0] == "--hashes" else None
    source, dsmoe, *checkpoints = arguments[2:] if hashes else arguments
    sys.path[:0] = [source, source + "/gguf-py"]
    failed = known = compared = 0
    for checkpoint in map(pathlib.Path, checkpoints):
        config = json.loads((checkpoint / "config.json").read_text())
        config = config.get("text_config", config)
        v4 = config["model_type"] == "deepseek_v4"
        for kind, vocabulary in (("q8_0", False),) if v4 else (("f32", False), ("bf16", False), ("bf16", True)):
            with tempfile.TemporaryDirectory() as tmp:
                ours, model = pathlib.Path(tmp) / "ours.gguf", pathlib.Path(tmp) / "model"
                model.mkdir()  # the converter takes keys from the directory's name
                for file in checkpoint.iterdir():
                    (model / file.name).symlink_to(file.absolute())
                if config.get("scoring_func") == "noaux_tc":
                    (model / "config.json").unlink()
                    (model / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "scoring_func"}))
                pre = small_vocabulary(model) if vocabulary else None
                if vocabulary and not pre:
                    continue
                flags = [] if pre else ["--no-vocab"]
                subprocess.run([dsmoe, "convert", model, ours, "--type", kind, "--name", "model", *flags], check=True, stdout=subprocess.DEVNULL)
                made = theirs(model, pathlib.Path(tmp) / "theirs.gguf", kind, pre)
                found = list(differences(ours, made, config))
                if hashes:
                    lines = [f"{n} {t} {s} {hashlib.sha256(b).hexdigest()}\n" for n, (t, s, b) in sorted(contents(made)[1].items())]
                    pathlib.Path(hashes).write_text("".join(lines))
                compared += len(contents(ours)[1])
                expected = sum(is_known for _, is_known in found)
                known, failed = known + expected, failed + len(found) - expected
                print(f"{checkpoint} {kind}{' with a vocabulary' if pre else ''}: {len(found) - expected} differences", *(text for text, _ in found), sep="\n  ")
    print(f"{compared} tensors compared, {failed} differences, {known} known ones")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
