#!/usr/bin/env python3
"""Checks what `dsmoe convert --to gguf` writes against gguf-py and llama.cpp.

    python3 -m venv /tmp/gguf && /tmp/gguf/bin/pip install -r scripts/requirements-gguf.txt
    go build -o /tmp/dsmoe ./cmd/dsmoe
    /tmp/gguf/bin/python scripts/gguf_check.py /tmp/dsmoe fixtures/v1-base fixtures/v2-lite fixtures/v3 fixtures/v3-fp8

Of each DIR, which holds a checkpoint and may hold a golden-f32 pack:

names    gguf-py's reader finds the tensors that its own table of names (gguf.TensorNameMap)
         gives for the checkpoint's, with their shapes and, element by element, their values:
         q and k permuted, kv_b split, experts stacked by numpy, FP8 dequantised
logits   llama.cpp loads the F32 file, and its logits are the pack's, to a relative RMS of 1e-5 (LIMIT_OTHER_EPS: see there);
         of a sequence with an indexer's cut among equal scores, those of the tokens before it (see tied)
mixture  for q8_0 and the others: llama.cpp's quantiser, given the F32 file, chooses the same
         type for each tensor, and writes the same bytes
again    dsmoe makes the same file of the F32 file as of the checkpoint; of a BF16 file that llama.cpp
         wrote it makes the tensors that llama.cpp's quantiser makes of it, and keeps all its keys
back     what dsmoe makes of such a file in F32 safetensors is what gguf-py decodes, in the order
         of the checkpoint
words    for the first DIR with tokenizers made by the tokenizers library, README.md and
         generation_config.json: the keys are those of gguf-py's SpecialVocab and Metadata. With
         llama.cpp's gguf-py on PYTHONPATH all of them are compared, with 0.19.0 fewer

With --types, each DIR is a config.json, of which dsmoe synth makes a checkpoint: the types that
llama.cpp's quantiser chooses are written beside it, a line for each mixture, kind of tensor and type,
with the layers: convert/gguf/testdata/mixtures/*.json.

The last line counts what was compared. The exit status is 1 if anything differs. A model whose
routing llama.cpp computes otherwise (V2's group_limited_greedy) is not one to give here.
"""

import argparse
import ctypes
import json
import pathlib
import struct
import shutil
import subprocess
import sys
import tempfile

import gguf
import llama_cpp
import numpy as np
import tokenizers
from safetensors.numpy import load_file
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers.processors import ByteLevel, RobertaProcessing, Sequence, TemplateProcessing

LIMIT = 1e-5
# llama.cpp takes rms_norm_eps in q_a_layernorm and kv_a_layernorm, where the reference has 1e-6. The reference's own
# logits of glm4-moe-lite move by 2.3e-5 if both norms get 1e-5.
LIMIT_OTHER_EPS = 5e-5
MIXTURES = {"q8_0": 7, "q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q3_k_s": 11, "q3_k_m": 12, "q3_k_l": 13, "q4_k_s": 14, "q4_k_m": 15,
            "q5_k_s": 16, "q5_k_m": 17, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30}


def bf16(words):
    return (words.astype(np.uint32) << 16).view(np.float32)


def e4m3(codes):
    codes = codes.astype(np.int32)
    exponent, fraction = codes >> 3 & 15, codes & 7
    value = np.where(exponent > 0, (8 + fraction) * 2.0 ** (exponent - 10.0), fraction * 2.0**-9)
    value = np.where(codes & 127 == 127, np.nan, value)
    return np.where(codes & 128, -value, value).astype(np.float32)


READERS = {"F32": (np.float32, lambda x: x), "F16": (np.float16, lambda x: x.astype(np.float32)), "BF16": (np.uint16, bf16), "F8_E4M3": (np.uint8, e4m3)}


def checkpoint(path):
    """All tensors of a safetensors checkpoint in float32, and their dtypes."""
    tensors, dtypes = {}, {}
    for file in sorted(path.glob("*.safetensors")):
        data = file.read_bytes()
        n = int.from_bytes(data[:8], "little")
        for name, t in json.loads(data[8 : 8 + n]).items():
            if name == "__metadata__":
                continue
            begin, end = t["data_offsets"]
            kind, widen = READERS[t["dtype"]]
            tensors[name] = widen(np.frombuffer(data[8 + n + begin : 8 + n + end], kind).reshape(t["shape"]))
            dtypes[name] = t["dtype"]
    for name in [n for n in tensors if n.endswith("_scale_inv")]:
        weight, scales = name.removesuffix("_scale_inv"), tensors.pop(name)
        rows, cols = tensors[weight].shape
        tensors[weight] = (tensors[weight] * np.repeat(np.repeat(scales, 128, 0), 128, 1)[:rows, :cols]).astype(np.float32)
    return tensors, dtypes


def permute(x, heads):
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


ARCHITECTURES = {"deepseek": "DEEPSEEK", "deepseek_v32": "DEEPSEEK32", "glm_moe_dsa": "GLM_DSA", "glm4_moe": "GLM4_MOE", "solar_open": "GLM4_MOE",
                 "dots1": "DOTS1", "hy_v3": "HY_V3", "minimax_m2": "MINIMAXM2", "exaone_moe": "EXAONE_MOE", "ernie4_5_moe": "ERNIE4_5_MOE"}


def expected(tensors, config):
    """The tensors of a file, by gguf-py's names."""
    v1 = config["model_type"] == "deepseek"
    arch = getattr(gguf.MODEL_ARCH, ARCHITECTURES.get(config["model_type"], "DEEPSEEK2"))  # some are in llama.cpp's own gguf-py alone
    layers = config["num_hidden_layers"]
    if config["model_type"] == "glm4_moe":
        layers += config["num_nextn_predict_layers"]
    names = gguf.get_tensor_name_map(arch, layers)
    heads = config["num_attention_heads"]
    want, stacks = {}, {}
    for name, x in tensors.items():
        parts = name.split(".")
        if parts[:2] == ["model", "layers"] and int(parts[2]) >= layers or "mtp" in name:
            continue
        if parts[-1] == "e_score_correction_bias":
            name = name.removesuffix("e_score_correction_bias") + "e_score_correction.bias"
        if ".experts." in name:
            stack = ".".join(parts[:5] + parts[6:])
            stacks.setdefault(stack, {})[int(parts[5])] = x
        elif name.endswith("kv_b_proj.weight"):
            split = x.reshape(heads, config["qk_nope_head_dim"] + config["v_head_dim"], -1)
            k, v = np.split(split, [config["qk_nope_head_dim"]], 1)
            want[names.get_name(name.replace("kv_b_proj", "k_b_proj"), (".weight",))] = k.swapaxes(1, 2)
            want[names.get_name(name.replace("kv_b_proj", "v_b_proj"), (".weight",))] = v
        else:
            if v1 and parts[-2] == "q_proj":
                x = permute(x, heads)
            if v1 and parts[-2] == "k_proj":
                x = permute(x, config["num_key_value_heads"])
            want[names.get_name(name, (".weight", ".bias"))] = x
    for stack, experts in stacks.items():
        want[names.get_name(stack, (".weight",))] = np.stack([experts[e] for e in range(len(experts))])
    return want


def read(path):
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def values(t):
    return gguf.quants.dequantize(t.data, t.tensor_type).reshape(*reversed([int(n) for n in t.shape]))


CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+"]  # deepseek-coder's patterns
LETTERS = ["a", "b", "ab", "Ġ", "<s>", "</s>", "<sep>", "<pad>", "<mask>", "<unk>", "<|im_end|>", "<cls>"]


def template(single, pair=None):
    special = [(t, LETTERS.index(t)) for t in LETTERS if t.startswith("<") and (t in single.split() or t in (pair or "").split())]
    return TemplateProcessing(single=single, pair=pair or "$A $B:1", special_tokens=special)


def obj(content):
    return {"__type": "AddedToken", "content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}


NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
CARD = """---
license: other
license_name: deepseek
license_link: https://example.org/LICENSE
base_model: Org/Model
tags: [moe, "mixture of experts"]
pipeline_tag: text-generation
language:
- en
- no
- zh
model_creator: Someone
model_description: A model.
version: v1
url: https://example.org
---
# A model
"""
DIRECT = "---\nname: A Name\nfinetune: chat\nmodel_type: base\nsize_label: 7B\nauthor: null\nmodel_author: b\nlicense: [mit, apache-2.0]\nlanguages: en\nlanguage: de\n---\n"
SAMPLING = {"temperature": 0.6, "top_p": 0.95, "top_k": 50, "min_p": 0, "penalty_repeat": 1.05, "mirostat": 2, "sequence": "kp", "xtc_threshold": None}

# Post-processor, tokenizer_config.json (None for no file), other files, and what config.json adds.
TOKENIZERS = {
    "bare": (None, NAMED, {}, {}),
    "bytelevel": (ByteLevel(), {**NAMED, "add_bos_token": False}, {}, {}),
    "bos": (template("<s> $A"), NAMED, {}, {}),
    "bos and eos": (template("<s> $A </s>"), {"bos_token": obj("<s>"), "eos_token": obj("</s>")}, {}, {}),
    "in a sequence": (Sequence([ByteLevel(), template("<s> $A", "<s> $A <s> $B")]), {**NAMED, "pad_token": "<pad>"}, {}, {}),
    "config says no": (template("<s> $A </s>"), {**NAMED, "add_bos_token": False, "add_eos_token": False}, {}, {}),
    "config says yes": (template("$A </s>"), {**NAMED, "add_bos_token": True}, {}, {}),
    "another end": (template("<s> $A <|im_end|>"), NAMED, {}, {"eot_token_id": 3}),
    "two other ends": (Sequence([template("$A <|im_end|>"), template("$A <unk>")]), NAMED, {}, {}),
    "another begin": (template("<cls> $A"), NAMED, {}, {}),
    "unknown begin": (template("<unk> $A"), {**NAMED, "cls_token": "<cls>"}, {}, {}),
    "cls and sep alone": (template("<cls> $A <sep>", "<cls> $A <sep> $B <sep>"), {"cls_token": "<cls>", "sep_token": "<sep>"}, {}, {}),
    "separator": (template("<s> $A", "<s> $A <sep> $B"), {**NAMED, "sep_token": "<sep>", "mask_token": "<mask>", "unk_token": "<unk>"}, {}, {}),
    "separator is the end": (template("<s> $A", "<s> $A </s> </s> $B"), NAMED, {}, {}),
    "strange pair": (template("<s> $A </s>", "$A <mask> $B </s>"), {**NAMED, "add_sep_token": True}, {}, {}),
    "roberta": (RobertaProcessing(("</s>", 5), ("<s>", 4)), NAMED, {}, {}),
    "no config": (template("<s> $A"), None, {}, {"bos_token_id": 4, "eos_token_id": 5}),
    "numbers": (template("<s> $A"), {"bos_token": "<none>", "add_sep_token": True}, {}, {"bos_token_id": 4, "eos_token_id": [5, 6], "pad_token_id": 7, "mask_token_id": 8}),
    "templates": (None, {**NAMED, "chat_template": [{"name": "default", "template": "d"}, {"name": "tool use", "template": "t"}, {"name": "rag", "template": "r"}]}, {}, {}),
    "jinja": (None, NAMED, {"chat_template.jinja": "j", "additional_chat_templates/tool.jinja": "t", "additional_chat_templates/a-b.jinja": "u"}, {}),
    "json": (None, NAMED, {"chat_template.json": '{"chat_template": "x"}'}, {}),
    "card": (None, NAMED, {"README.md": CARD, "generation_config.json": json.dumps(SAMPLING)}, {}),
    "penalty": (None, NAMED, {"generation_config.json": '{"repetition_penalty": 1.1}'}, {}),
    "direct": (None, NAMED, {"README.md": DIRECT}, {}),
}

# What gguf-py 0.19.0 decides otherwise than its successor in llama.cpp's repository, by which dsmoe goes.
NEWER = {"bytelevel", "bos and eos", "in a sequence", "config says no", "another begin", "strange pair", "numbers", "penalty"}


def vocabulary(processor):
    t = tokenizers.Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(LETTERS)}, merges=[("a", "b")]))
    split = [pre_tokenizers.Split(Regex(x), "isolated") for x in CODER]
    t.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    if processor:
        t.post_processor = processor
    t.add_special_tokens([AddedToken(x, special=True) for x in LETTERS if x.startswith("<")])
    return t


def theirs(path, total):
    """What gguf-py makes of a directory."""
    writer = gguf.GGUFWriter(path / "unwritten", "deepseek")
    gguf.Metadata.load(model_path=path, total_params=total).set_gguf_meta_model(writer)
    gguf.SpecialVocab(path, load_merges=True).add_to_gguf(writer)
    return {key: v.value for key, v in writer.kv_data[0].items()}


class Check:
    def __init__(self, dsmoe):
        self.dsmoe, self.failed, self.counts = dsmoe, 0, {}
        self.silent = llama_cpp.llama_log_callback(lambda *a: None)
        llama_cpp.llama_log_set(self.silent, None)

    def fail(self, what):
        self.failed += 1
        print("DIFFERS", what)

    def count(self, what, n=1):
        self.counts[what] = self.counts.get(what, 0) + n

    def convert(self, src, dst, kind, *flags):
        if (src / "config.json").exists() and not (src / "tokenizer.json").exists():
            flags += ("--no-vocab",)
        subprocess.run([self.dsmoe, "convert", src, dst, "--to", "gguf", "--type", kind, "--name", "model", *flags], check=True, stdout=subprocess.DEVNULL)
        return next(dst.glob("*.gguf"))

    def names(self, path, want, what, exact):
        got = read(path)
        if set(got) != set(want):
            self.fail(f"{what}: names {sorted(set(got) ^ set(want))}")
        for name in sorted(set(got) & set(want)):
            x = values(got[name])
            w = want[name] if exact or got[name].tensor_type == gguf.GGMLQuantizationType.F32 else bf16(rounded(want[name]))
            if x.shape != w.shape or not np.array_equal(x, w):
                self.fail(f"{what}: {name}: {x.shape} {w.shape}")
            self.count("tensors with their names, shapes and values")

    def logits(self, path, pack):
        L = llama_cpp

        config = json.loads((pack.parent / "checkpoint" / "config.json").read_text())
        limit = LIMIT_OTHER_EPS if "kv_lora_rank" in config and config["rms_norm_eps"] != 1e-6 else LIMIT
        ids = load_file(pack / "inputs.safetensors")
        want = load_file(pack / "head.safetensors")["lm_head.output"].astype(np.float64)
        mask = ids.get("attention_mask", np.ones_like(ids["input_ids"])).astype(bool)
        model = L.llama_model_load_from_file(str(path).encode(), L.llama_model_default_params())
        if not model:
            return self.fail(f"{path}: llama.cpp does not load it")
        params = L.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 512
        params.type_k = params.type_v = 0
        params.flash_attn_type = 0
        for n, (row, keep, golden) in enumerate(zip(ids["input_ids"], mask, want)):
            context = L.llama_init_from_model(model, params)
            tokens = row[keep]
            batch = L.llama_batch_init(len(tokens), 0, 1)
            batch.n_tokens = len(tokens)
            for i, token in enumerate(tokens):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
                batch.seq_id[i][0] = 0
            assert L.llama_decode(context, batch) == 0
            got = np.stack([np.ctypeslib.as_array(L.llama_get_logits_ith(context, i), (want.shape[-1],)).copy() for i in range(len(tokens))])
            until = tied(pack, n, keep)
            error = np.sqrt(((got - golden[keep])[:until] ** 2).sum() / (golden[keep][:until] ** 2).sum())
            print(f"{path.parent.name}: {until} of {len(tokens)} tokens, relative RMS of llama.cpp's logits {error:.2e}")
            self.count("sequences with their logits")
            if not error <= limit:
                self.fail(f"{path}: logits")
            L.llama_batch_free(batch)
            L.llama_free(context)
        L.llama_model_free(model)

    def imatrices(self, f32, tmp):
        """Two importance matrices for a file, GGUF and .dat: paths, and the values that llama.cpp takes from
        them. Experts that saw no token, a tensor without an entry and an entry without a tensor are among them."""
        r = np.random.default_rng(26)
        writer = gguf.GGUFWriter(tmp / "imatrix.gguf", "imatrix")
        writer.add_array("imatrix.datasets", ["a text", "another"])
        writer.add_uint32("imatrix.chunk_count", 7)
        writer.add_uint32("imatrix.chunk_size", 512)
        old, new, previous = b"", {}, {}
        for t in list(read(f32).values()):
            shape = [int(n) for n in t.shape] + [1]
            if len(t.shape) < 2 or not t.name.endswith(".weight") or t.name == "blk.1.attn_output.weight":
                continue
            sums = (np.exp(2 * r.standard_normal((shape[2], shape[0]))) * 50).astype(np.float32)
            counts = r.integers(0, 3, (shape[2], 1)).astype(np.float32) * 100
            writer.add_tensor(t.name + ".in_sum2", sums)
            writer.add_tensor(t.name + ".counts", counts)
            with np.errstate(all="ignore"):
                new[t.name] = np.where(counts > 0, sums / counts, np.float32(1)).astype(np.float32).ravel()
            calls = int(r.integers(0, 3))
            old += struct.pack("<i", len(t.name)) + t.name.encode() + struct.pack("<ii", calls, sums.size) + sums.tobytes()
            previous[t.name] = (sums / np.float32(max(calls, 1))).ravel()
        writer.add_tensor("blk.99.gone.weight.in_sum2", np.ones((1, 4), np.float32))
        writer.add_tensor("blk.99.gone.weight.counts", np.ones((1, 1), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        (tmp / "imatrix.dat").write_bytes(struct.pack("<i", len(previous)) + old + struct.pack("<ii", 9, 4) + b"text")
        return [(tmp / "imatrix.gguf", new), (tmp / "imatrix.dat", previous)]

    def mixture(self, f32, ours, word, dst, importance=None):
        L = llama_cpp
        params = L.llama_model_quantize_default_params()
        if importance:
            entries = (L.llama_cpp.llama_model_imatrix_data * (len(importance) + 1))()
            for entry, (name, values) in zip(entries, importance.items()):
                entry.name, entry.size = name.encode(), values.size
                entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            params.imatrix = entries
        params.ftype = MIXTURES[word]
        params.nthread = 2
        if L.llama_model_quantize(str(f32).encode(), str(dst).encode(), ctypes.byref(params)) != 0:
            return self.fail(f"{f32}: llama.cpp cannot quantise it to {word}")
        theirs, ours = read(dst), read(ours)
        for name, t in theirs.items():
            u = ours.get(name)
            if u is None or u.tensor_type != t.tensor_type:
                self.fail(f"{word}: {name}: {t.tensor_type.name}, ours {u and u.tensor_type.name}")
            elif t.data.tobytes() != u.data.tobytes():
                self.fail(f"{word}: {name}: {t.tensor_type.name}: bytes")
            else:
                self.count(f"tensors of {t.tensor_type.name} that llama.cpp's quantiser makes")


    def types(self, config, tmp):
        """Writes the types of all mixtures beside a config.json."""
        subprocess.run([self.dsmoe, "synth", config, tmp / "src"], check=True, stdout=subprocess.DEVNULL)
        f32, lines = self.convert(tmp / "src", tmp / "f32", "f32"), []
        for word in MIXTURES:
            self.mixture(f32, self.convert(tmp / "src", tmp / word, word), word, tmp / "theirs.gguf")
            groups = {}
            for name, t in read(tmp / "theirs.gguf").items():
                if t.tensor_type != gguf.GGMLQuantizationType.F32:
                    parts = name.split(".")
                    layer = parts[1:2] if parts[0] == "blk" else []
                    groups.setdefault((".".join(parts[2 * len(layer):]), t.tensor_type.name), []).extend(map(int, layer))
            for (kind, name), layers in sorted(groups.items()):
                lines.append(" ".join([word, kind, name] + [str(n) for n in sorted(layers)]))
        for path, values in self.imatrices(f32, tmp):
            for word in MIXTURES:
                if "_k" in word:
                    ours = self.convert(tmp / "src", tmp / (word + path.suffix[1:]), word, "--imatrix", path)
                    self.mixture(f32, ours, word, tmp / "theirs.gguf", values)
        config.with_suffix(".txt").write_text("\n".join(lines) + "\n")

    def words(self, src, tmp):
        older = not hasattr(gguf.SpecialVocab, "_parse_normalizer")
        for name, (processor, settings, files, more) in TOKENIZERS.items():
            if older and name in NEWER:
                print(f"words: {name}: not compared: this gguf-py is older than llama.cpp's")
                continue
            d = tmp / "model"
            shutil.copytree(src, d)
            vocabulary(processor).save(str(d / "tokenizer.json"))
            (d / "config.json").write_text(json.dumps({**json.loads((src / "config.json").read_text()), "bos_token_id": None, "eos_token_id": None, **more}))
            files = {**files, **({"tokenizer_config.json": json.dumps(settings)} if settings is not None else {})}
            for file, text in files.items():
                (d / file).parent.mkdir(exist_ok=True)
                (d / file).write_text(text)
            out = tmp / "out.gguf"
            subprocess.run([self.dsmoe, "convert", d, out], check=True, stdout=subprocess.DEVNULL)
            ours = gguf.GGUFReader(out)
            want = theirs(d, sum(int(t.n_elements) for t in ours.tensors))
            got = {k: f.contents() for k, f in ours.fields.items() if k.startswith(("general.", "tokenizer."))}
            for own in ["general.type", "general.file_type", "general.quantization_version", *("tokenizer.ggml." + x for x in ["model", "pre", "tokens", "token_type"])]:
                got.pop(own)
            for key in ["general.architecture", *(["general.name"] if want["general.name"] == "Model" else []), *(["general.size_label"] if "general.size_label" not in want else [])]:
                want.pop(key, None), got.pop(key)  # gguf-py makes a title of a directory's name, and the converter the size
            for key in sorted(want.keys() | got.keys()):
                w, g = want.get(key), got.get(key)
                if isinstance(w, float):
                    w = float(np.float32(w))
                if key == "tokenizer.chat_templates":
                    w, g = sorted(w), sorted(g)
                if w != g:
                    self.fail(f"words: {name}: {key}: gguf-py {w!r}, ours {g!r}")
                self.count("keys of vocabularies and metadata that gguf-py makes")
            shutil.rmtree(d), out.unlink(), out.with_name("out.gguf.manifest.json").unlink()

    def again(self, f32, ours, word, tmp):
        if self.convert(f32, tmp / "again", word).read_bytes() != ours.read_bytes():
            self.fail(f"{word}: {f32} quantised again")
        self.count("files that are the same made of the F32 file")
        other = tmp / "bf16.gguf"
        if not other.exists():
            params = llama_cpp.llama_model_quantize_default_params()
            params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_BF16
            assert llama_cpp.llama_model_quantize(str(f32).encode(), str(other).encode(), ctypes.byref(params)) == 0
        again = self.convert(other, tmp / "other", word)
        self.mixture(other, again, word, tmp / "theirs.gguf")
        keys = [{k: f.contents() for k, f in gguf.GGUFReader(x).fields.items() if not k.startswith("GGUF.")} for x in [again, tmp / "theirs.gguf"]]
        keys[0].pop("general.name"), keys[1].pop("general.name")
        if keys[0] != keys[1]:
            self.fail(f"{word}: keys {keys}")
        self.count("keys that llama.cpp's quantiser keeps", len(keys[1]))
        shutil.rmtree(tmp / "again"), shutil.rmtree(tmp / "other")

    def back(self, path, config, dst):
        subprocess.run([self.dsmoe, "convert", path, dst, "--type", "f32"], check=True, stdout=subprocess.DEVNULL)
        decoded = {name: values(t) for name, t in read(path).items()}
        again = expected(checkpoint(dst)[0], config)
        for name in sorted(set(decoded) | set(again)):
            if name not in decoded or name not in again or not np.array_equal(decoded[name].astype(np.float32), again[name]):
                self.fail(f"{path}: {name}: as it comes back")
            self.count("tensors that come back as gguf-py decodes them")


def tied(pack, row, keep):
    """How many tokens of a sequence come before the first whose indexer's cut falls among equal scores, in any layer. The
    ReLU makes a key's score exactly 0 where every head is negative; which of such keys is taken is unspecified, and llama.cpp
    takes others than PyTorch does. What is chosen changes the token's output, and what later tokens attend to."""
    first = int(keep.sum())
    for file in pack.glob("layer-*.safetensors"):
        layer = load_file(file)
        for name in [n for n in layer if n.endswith("indexer.scores")]:
            k = layer[name.removesuffix("scores") + "topk_idx"].shape[-1]
            scores = -np.sort(-layer[name][row][keep][:, keep])
            equal = [i for i, s in enumerate(scores) if i >= k and s[k - 1] == s[k]]
            first = min([first, *equal])
    return first


def rounded(x):
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsmoe")
    parser.add_argument("--types", action="store_true")
    parser.add_argument("dir", nargs="+", type=pathlib.Path)
    o = parser.parse_args()
    check = Check(o.dsmoe)
    for d in o.dir:
        if o.types:
            with tempfile.TemporaryDirectory() as tmp:
                check.types(d, pathlib.Path(tmp))
            continue
        src = d / "checkpoint" if (d / "checkpoint").is_dir() else d
        config = json.loads((src / "config.json").read_text())
        tensors, dtypes = checkpoint(src)
        want = expected(tensors, config)
        fp8 = "F8_E4M3" in dtypes.values()
        with tempfile.TemporaryDirectory() as tmp:
            tmp = pathlib.Path(tmp)
            if d == o.dir[0]:
                check.words(src, tmp)
            check.names(check.convert(src, tmp / f"{d.name}-keep", "keep"), want, f"{d}: keep", not fp8)
            f32 = check.convert(src, tmp / f"{d.name}-f32", "f32")
            check.names(f32, want, f"{d}: f32", True)
            for pack in [d / "golden-f32", d.with_name(d.name + "-pack")]:
                if pack.is_dir():
                    check.logits(f32, pack)
            for word in MIXTURES:
                ours = check.convert(src, tmp / f"{d.name}-{word}", word)
                check.mixture(f32, ours, word, tmp / f"{word}.gguf")
                check.again(f32, ours, word, tmp)
                check.back(ours, config, tmp / f"{d.name}-{word}-back")
    for what, n in sorted(check.counts.items()):
        print(f"{n:6} {what}")
    print("all the same" if not check.failed else f"{check.failed} differ")
    sys.exit(check.failed > 0)


main()
