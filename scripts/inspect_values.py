#!/usr/bin/env python3
"""Writes cmd/dsmoe/testdata/inspect_values.json: statistics of some tensors of the fixtures, their
experts and routers by numpy, and hashes of whole checkpoints by the BLAKE3 of Python, for the tests
of `dsmoe inspect stats`, `hash`, `experts` and `router`; and inspect_routing.json there: the routing
that golden packs have recorded, for those of `inspect routing`. Needs numpy 2 and blake3. Run it in
the root of the repository."""

import glob
import json
import struct

import blake3
import numpy as np

FIXTURES = ["v1-base", "v1-gqa-norm-freq2", "v1-top1-noshared", "v3", "v3-fp8"]
QUANTILES = ["0.001", "0.07", "0.5", "0.99"]
TENSORS = ["lm_head.weight", "model.embed_tokens.weight", "model.norm.weight", "model.layers.0.mlp.down_proj.weight",
           "model.layers.1.self_attn.o_proj.weight", "model.layers.1.mlp.gate.weight",
           "model.layers.1.mlp.experts.2.up_proj.weight", "model.layers.1.mlp.experts.2.down_proj.weight"]


def read(directory):
    """All tensors: name -> (dtype, shape, bytes)."""
    tensors = {}
    for path in glob.glob(directory + "/*.safetensors"):
        with open(path, "rb") as f:
            data = f.read()
        (size,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[name] = (entry["dtype"], entry["shape"], data[8 + size + begin : 8 + size + end])
    return tensors


def e4m3():
    """The numbers of F8_E4M3 by their codes."""
    table = []
    for code in range(256):
        sign, exponent, mantissa = -1.0 if code & 128 else 1.0, code >> 3 & 15, code & 7
        if exponent == 15 and mantissa == 7:
            table.append(float("nan"))
        elif exponent == 0:
            table.append(sign * mantissa / 8 * 2.0**-6)
        else:
            table.append(sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return np.array(table, dtype=np.float32)


def values(tensors, name):
    """A tensor's numbers as float32."""
    dtype, shape, data = tensors[name]
    if dtype == "F32":
        x = np.frombuffer(data, dtype="<f4")
    elif dtype == "F16":
        x = np.frombuffer(data, dtype="<f2").astype(np.float32)
    elif dtype == "BF16":
        x = (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        x = e4m3()[np.frombuffer(data, dtype=np.uint8)].reshape(shape)
        scales = values(tensors, name + "_scale_inv")
        x = x * np.kron(scales, np.ones((128, 128), dtype=np.float32))[: shape[0], : shape[1]]
    return x.reshape(shape)


def stats(x):
    wide = x.astype(np.float64)
    return {"elements": x.size, "zeros": int((x == 0).sum()), "min": float(x.min()), "max": float(x.max()),
            "mean": float(wide.mean()), "std": float(wide.std()),
            "quantiles": [{"q": q, "value": float(np.quantile(x, np.float64(q), method="inverted_cdf"))} for q in QUANTILES],
            "median_absmax": float(np.sort(np.abs(x.reshape(x.shape[0], -1)).max(axis=1))[(x.shape[0] - 1) // 2])}


def model_hash(tensors):
    lines = []
    for name, (_, shape, _) in tensors.items():
        if not name.endswith("_scale_inv"):
            head = "F32" + "".join(f" {n}" for n in shape) + "\n"
            digest = blake3.blake3(head.encode() + values(tensors, name).astype("<f4").tobytes()).hexdigest()
            lines.append(f"{name} blake3:{digest}\n".encode())
    return "blake3:" + blake3.blake3(b"".join(sorted(lines))).hexdigest()


def layers(tensors):
    """The layers that have a router."""
    return sorted(int(n.split(".")[2]) for n in tensors if n.endswith(".mlp.gate.weight"))


def sign(probe, i):
    """The sign of number i of a probe, by SplitMix64."""
    mask = 2**64 - 1
    z = ((probe << 32) + i + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return -1.0 if (z ^ z >> 31) >> 63 else 1.0


def nearest(vectors, measure):
    """For each vector the cosine with another one that measure makes largest, and which it is."""
    unit = [v.ravel() / np.linalg.norm(v) for v in vectors]
    cosines = np.array([[a @ b for b in unit] for a in unit])
    away = measure(cosines.copy())
    np.fill_diagonal(away, -np.inf)
    best = away.argmax(axis=1)
    return [[float(cosines[i, k]), int(k)] for i, k in enumerate(best)]


def distinct(w):
    different = every = 0
    runs = min(64, len(w))
    for i in range(runs):
        run = np.abs(w[i * len(w) // runs][:128])
        different, every = different + len(np.unique(run[run > 0])), every + int((run > 0).sum())
    return different / every


def experts(tensors, layer):
    """The experts of a layer: a list of a number for each, by names."""
    prefix = f"model.layers.{layer}."
    number = max(int(n.split(".")[5]) for n in tensors if n.startswith(prefix + "mlp.experts.")) + 1
    norm = values(tensors, prefix + "post_attention_layernorm.weight").astype(np.float64)
    probes = np.array([[sign(p, c) for c in range(len(norm))] for p in range(8)]) * norm
    w = {m: [values(tensors, f"{prefix}mlp.experts.{e}.{m}_proj.weight").astype(np.float64) for e in range(number)] for m in ("gate", "up", "down")}
    outputs = []
    for gate, up, down in zip(w["gate"], w["up"], w["down"]):
        g = probes @ gate.T
        outputs.append(g / (1 + np.exp(-g)) * (probes @ up.T) @ down.T)
    out = {"function": nearest(outputs, lambda c: c)}
    for m, all in w.items():
        out[m] = {"norm": [float(np.linalg.norm(x)) for x in all], "spectral_norm": [float(np.linalg.svd(x, compute_uv=False)[0]) for x in all],
                  "distinct": [distinct(x) for x in all], "nearest": nearest(all, np.abs)}
    return out


def bf16(x):
    """x rounded to BF16."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def rounding(tensors, layer):
    """The relative RMS error of each gate_proj of a layer when it is rounded to BF16."""
    errors, e = [], 0
    while (name := f"model.layers.{layer}.mlp.experts.{e}.gate_proj.weight") in tensors:
        w = values(tensors, name)
        errors.append(float(np.linalg.norm(bf16(w).astype(np.float64) - w) / np.linalg.norm(w.astype(np.float64))))
        e += 1
    return errors


def router(tensors, layer):
    prefix = f"model.layers.{layer}."
    w = values(tensors, prefix + "mlp.gate.weight").astype(np.float64)
    norm = values(tensors, prefix + "post_attention_layernorm.weight").astype(np.float64)
    return {"norm": np.linalg.norm(w, axis=1).tolist(), "max_logit": (np.linalg.norm(w * norm, axis=1) * np.sqrt(w.shape[1])).tolist(),
            "singular": np.linalg.svd(w, compute_uv=False).tolist(), "nearest": nearest(list(w), np.abs)}


ROUTED = ["v1-base", "v1-router-ties", "v1-top1-noshared", "v2-group-yarn", "v3", "v3-mtp"]


def selection_scores(config, logits, bias):
    """What experts are chosen by, [tokens, experts]: float32, as the reference's gates have it."""
    x = logits.astype(np.float64)
    if config.get("scoring_func", "softmax") == "sigmoid":
        scores = (1 / (1 + np.exp(-x))).astype(np.float32)
    else:
        e = np.exp(x - x.max(axis=1, keepdims=True))
        scores = (e / e.sum(axis=1, keepdims=True)).astype(np.float32)
    method = config.get("topk_method", "noaux_tc" if config["model_type"] == "deepseek_v3" else "greedy")
    if method == "greedy":
        return scores
    best, outside = (2, -np.inf) if method == "noaux_tc" else (1, 0)
    scores = scores + bias if method == "noaux_tc" else scores
    grouped = scores.reshape(len(scores), config["n_group"], -1)
    worth = np.sort(grouped, axis=2)[:, :, -best:].sum(axis=2)
    left = np.full_like(grouped, outside)
    for token, groups in enumerate(np.argsort(-worth, axis=1, kind="stable")[:, : config["topk_group"]]):
        left[token, groups] = grouped[token, groups]
    return left.reshape(scores.shape)


def margins(scores, ids):
    """Of each token the lowest score of its experts less the highest of the others, where there is one."""
    found = []
    for row, chosen in zip(scores.astype(np.float64), ids):
        others = np.delete(row, chosen).max()
        if np.isfinite(others):
            found.append(row[chosen].min() - others)
    found = np.array(found)
    q = [float(np.quantile(found, p, method="inverted_cdf")) for p in (0.01, 0.1, 0.5)]
    return {"tokens": len(found), "min": float(found.min()), "q01": q[0], "q10": q[1], "median": q[2], "ties": int((found == 0).sum())}


def routing(fixture):
    """The numbers of each layer of a pack that routes."""
    with open(f"fixtures/{fixture}/checkpoint/config.json") as f:
        config = json.load(f)
    weights, pack = read(f"fixtures/{fixture}/checkpoint"), read(f"fixtures/{fixture}/golden-f32")
    whole = {n: np.frombuffer(pack[n][2], dtype="<i8").reshape(pack[n][1]) for n in pack if pack[n][0] == "I64"}
    mask = whole.get("attention_mask", np.ones_like(whole["input_ids"]))
    layers = {}
    for name in (n for n in whole if n.endswith(".mlp.gate.topk_idx")):
        gate = name.removesuffix("topk_idx")
        ahead = mask.size - len(whole[name])  # tokens that a prediction layer has less, over the batch
        real = (mask if ahead == 0 else mask[:, ahead // len(mask) :] * mask[:, : -(ahead // len(mask))]).reshape(-1) == 1
        ids, weight, logits = whole[name][real], values(pack, gate + "topk_weight")[real].astype(np.float64), values(pack, gate + "logits")[real]
        experts, (tokens, k) = logits.shape[1], ids.shape
        chosen = np.zeros((tokens, experts), dtype=np.int64)
        np.put_along_axis(chosen, ids, 1, axis=1)
        mass = np.zeros((tokens, experts))
        np.put_along_axis(mass, ids, weight, axis=1)
        count, together = chosen.sum(axis=0), chosen.T @ chosen
        p = count[count > 0] / count.sum()
        bias = gate + "e_score_correction_bias"
        layers[gate.split(".")[2]] = {
            "tokens": tokens, "counts": count.tolist(), "entropy": float(-(p * np.log(p)).sum()), "maxvio": float(count.max() / count.mean() - 1),
            "cv": float(count.std() / count.mean()), "mass": mass.sum(axis=0).tolist(),
            "pairs": [[i, j, int(together[i, j])] for i in range(experts) for j in range(i + 1, experts) if together[i, j]],
            "margins": margins(selection_scores(config, logits, values(weights, bias) if bias in weights else 0), ids)}
    return layers


def main():
    with open("cmd/dsmoe/testdata/inspect_routing.json", "w") as f:
        json.dump({fixture: routing(fixture) for fixture in ROUTED}, f)
        f.write("\n")
    out = {}
    for fixture in FIXTURES:
        tensors = read(f"fixtures/{fixture}/checkpoint")
        out[fixture] = {"model": model_hash(tensors), "tensors": {n: stats(values(tensors, n)) for n in TENSORS if n in tensors}}
        layer = layers(tensors)[0]
        out[fixture] |= {"layer": layer, "experts": experts(tensors, layer), "router": router(tensors, layer), "rounding": rounding(tensors, layer)}
    with open("cmd/dsmoe/testdata/inspect_values.json", "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


main()
