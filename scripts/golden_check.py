#!/usr/bin/env python3
"""Checks by hand that golden.py reproduces golden packs which were made elsewhere.

    python scripts/golden_check.py GOLDENS [--code DIR] [--dsmoe BIN] [NAME ...]

GOLDENS holds a directory per checkpoint, NAME/checkpoint and NAME/golden-*, as fixtures/ does. Every
pack that was made with this environment's torch and transformers is recorded again from its own tokens,
in the dtype, mode and number of threads that its manifest says, once more with another number of
threads, and from each NAME/checkpoint-*, which holds the same weights in another form. Printed are the
tensors that are equal to the bit and, for the worst of the others, the difference relative to the
tensor's RMS, beside that between the numbers of threads; and whether the whole model, loaded by
from_pretrained, gives the same logits to the bit on this machine.

--code DIR    holds the published modeling_deepseek.py and configuration_deepseek.py
--dsmoe BIN   makes the checkpoints of which only config.json is there, and verifies each new pack
--rules       checks instead what golden.py refuses, which weights it reads, and what it says of patches:
              without torch, --mtp without prediction layers, a model.safetensors beside an index,
              --layers without the files of the other layers, a compiled norm; and how wide its progress is
--paths       records instead a pack by every path of golden.py that its help and the docs name and this
              environment has: those of transformers' classes, or those of the published code in --code DIR;
              --dsmoe BIN verifies each of them
--stages, --work DIR

Exit status: 0 all packs were reproduced, 1 one was not, 2 nothing could be checked.
"""
import argparse
import fcntl
import glob
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios

import torch
import transformers
from transformers import dynamic_module_utils as dynamic
from safetensors import safe_open
from safetensors.torch import save_file

# By the kind of reference: a checkpoint of GOLDENS, and the flags of a path.
PATHS = {
    "native": [
        ("v3", "--random 2x17 --mask --stages all"), ("v3", "--random 1x16 --dtype bfloat16 --repeat"),
        ("v3", "--random 2x12 --mask --dtype bfloat16 --attn sdpa"), ("v3", "--random 1x12 --layers 1,3-4 --seed 9"),
        ("v3", "--random 1x12 --stages self_attn.*,mlp.gate.topk_idx,output"), ("v3", "--random 1x12 --no-probes --threads 2"),
        ("v3-trained", "--text func --text return --dtype float16 --cast"), ("v3-mtp", "--random 2x12 --mtp"),
        ("v3-mtp-two", "--random 2x12 --mtp --dtype bfloat16"), ("v3-fp8", "--random 1x12 --dtype bfloat16"),
        ("glm4-moe", "--random 2x12 --mtp --experts grouped_mm --dtype bfloat16"),
        ("minimax-m2", "--random 2x12 --experts batched_mm --dtype float16"),
        *((name, "--random 2x12 --dtype bfloat16") for name in (
            "v2-lite", "glm4-moe-lite", "axk1", "v32", "glm5", "v4", "dots1", "solar-open", "hy-v3", "exaone-moe", "ernie45-moe")),
        *((f"blocks/{name}", f"--block --random 1x24{dtype}") for name in (
            "afmoe", "axk2", "bailing-hybrid", "beam", "dots3-note", "flint", "hy-v4", "kimi-linear", "kolibri1", "laguna", "lara-mini",
            "mimo-v2-flash", "minimax-m3", "mistral4", "qwen3-5", "qwen3-next", "glm5-next", "longcat-flash", "mistral-large4",
            "nemotron-h", "step3p7")
          for dtype in ("", " --dtype bfloat16") if tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24)),
    ],
    "remote": [
        ("v1-base", "--random 2x17 --mask --stages all"), ("v1-base", "--random 2x17 --dtype bfloat16 --repeat"),
        ("v1-base", "--random 2x12 --mask --dtype bfloat16 --attn sdpa"), ("v1-base", "--random 1x12 --layers 1,3 --seed 9"),
        ("v1-f16", "--random 2x12 --dtype float16 --cast"), ("v1-trained", "--text func --text return"),
        ("v1-base", "--random 2x17 --train --override aux_loss_alpha=0.05"), ("v1-base", "--random 2x12 --mask --train --stages all --repeat"),
        ("v1-rope-linear-tied-bias", "--random 2x12 --train"),
    ],
}
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden.py")
# Relative to a tensor's RMS, through all layers: twice what another processor's order of sums was seen to make.
LIMIT = {"float32": 4e-6, "bfloat16": 1e-2, "float16": 1e-3}


def tensors(pack):
    with open(os.path.join(pack, "manifest.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    found = {}
    for file in manifest["files"]:
        with safe_open(os.path.join(pack, file), "pt") as f:
            found |= {k: f.get_tensor(k) for k in f.keys()}
    return manifest, found


def differences(want, got):
    """Equal tensors, the largest relative difference with its tensor, and what is wrong."""
    equal, worst, wrong = 0, (0.0, ""), []
    for name, a in want.items():
        b = got.get(name)
        if b is None or b.shape != a.shape or b.dtype != a.dtype:
            wrong.append(f"{name}: {'missing' if b is None else f'{b.dtype} {list(b.shape)}, {a.dtype} {list(a.shape)} expected'}")
        elif torch.equal(a, b):
            equal += 1
        elif not a.is_floating_point():
            if not torch.equal(a.sort(-1).values, b.sort(-1).values):
                wrong.append(f"{name}: another choice in {(a.sort(-1).values != b.sort(-1).values).any(-1).sum()} of {len(a)} rows")
        else:
            worst = max(worst, (((a.double() - b.double()).norm() / a.double().norm()).item(), name))
    return equal, worst, wrong


def options(manifest, code):
    r = manifest["reference"]
    o = ["--dtype", manifest["compute_dtype"]]
    o += ["--reference", "remote", "--trust-remote-code"] if r["kind"] == "remote code" else ["--reference", "native"]
    o += ["--code", code] if code and r["kind"] == "remote code" else []
    o += ["--attn", r["attn_implementation"]] if "attn_implementation" in r else []
    o += ["--experts", r["experts_implementation"]] if "experts_implementation" in r else []
    o += ["--cast"] if manifest["compute_dtype"] != "float32" and not manifest.get("made_by", "").startswith("from_pretrained") else []
    o += ["--mtp"] if "mtp" in manifest else []
    o += [] if "probes" in manifest else ["--no-probes"]
    o += ["--train"] if manifest["mode"] == "train" else []
    for key, value in manifest.get("config_overrides", {}).items():
        o += ["--override", f"{key}={json.dumps(value)}"]
    return o


def weights(a, golden, manifest, work):
    """The checkpoint's directory, made if it is synthetic."""
    checkpoint = os.path.join(os.path.dirname(golden), "checkpoint")
    if glob.glob(checkpoint + "/*.safetensors") or glob.glob(checkpoint + "/*.bin"):
        return checkpoint
    if not a.dsmoe:
        return None
    out = os.path.join(work, "weights")
    subprocess.run([a.dsmoe, "synth", checkpoint + "/config.json", out, "--seed", str(manifest["seed"])], check=True, stdout=subprocess.DEVNULL)
    return out


def check(a, golden, work):
    """Whether a pack was reproduced, and how near."""
    manifest, want = tensors(golden)
    checkpoint = weights(a, golden, manifest, work)
    if checkpoint is None:
        return None, "only config.json is there: --dsmoe makes the weights"
    threads, packs = manifest["reference"].get("threads", 1), []
    forms = [] if manifest["mode"] == "train" else sorted(glob.glob(os.path.join(os.path.dirname(golden), "checkpoint-*")))
    for n, form in [(threads, checkpoint), (1 if threads > 1 else 2, checkpoint), *((threads, f) for f in forms)]:
        packs.append(os.path.join(work, f"pack-{len(packs)}"))
        run = subprocess.run([sys.executable, GOLDEN, form, packs[-1], "--tokens", os.path.join(golden, "inputs.safetensors"), "--threads",
                              str(n), "--stages", a.stages, *options(manifest, a.code)], capture_output=True, text=True)
        if run.returncode:
            return False, f"{form}: {run.stderr.strip().splitlines()[-1]}"
    made, got = tensors(packs[0])
    equal, (worst, name), wrong = differences(want, got)
    threads_equal, (noise, _), _ = differences({k: got[k] for k in want if k in got}, tensors(packs[1])[1])
    for gate, gap in manifest.get("router_gap_min", {}).items():
        ours = made["router_gap_min"].get(gate)
        if ours is None or abs(ours - gap) > 1e-5:
            wrong.append(f"{gate}: router_gap_min {ours}, {gap} expected")
    if made.get("probes") != manifest.get("probes"):
        wrong.append(f"probes {made.get('probes')}, {manifest.get('probes')} expected")
    text = f"{equal} of {len(want)} tensors equal; worst {worst:.2g} {name}; between threads {threads_equal} equal, worst {noise:.2g}"
    for form, pack in zip(forms, packs[2:]):
        equal = differences(got, tensors(pack)[1])[0] == len(got)
        text += f"; {os.path.basename(form)}: {'equal' if equal else 'NOT EQUAL'}"
        wrong += [] if equal else [f"{form}: another pack"]
    same = whole(a, checkpoint, manifest, got, work)
    if same is not None:
        text += "; the whole model at once: " + ("equal" if same else "NOT EQUAL")
        wrong += [] if same else ["from_pretrained gives other logits on this machine"]
    if a.dsmoe:
        ours, theirs = (subprocess.run([a.dsmoe, "verify", checkpoint, p], capture_output=True).returncode for p in (packs[0], golden))
        text += f"; dsmoe verify: {ours}, of the golden {theirs}"
        wrong += [] if ours == theirs else ["dsmoe verify: another verdict"]
    good = not wrong and worst <= LIMIT[manifest["compute_dtype"]]
    return good, "; ".join([text, *wrong[:3]])


def whole(a, checkpoint, manifest, got, work):
    """Whether from_pretrained, with all weights in memory, gives the same logits to the bit; None if it cannot load them."""
    r = manifest["reference"]
    if manifest["mode"] == "train" or "weights" in r and not a.dsmoe or "lm_head.output" not in got:
        return None
    if "weights" in r:  # transformers runs FP8 on a GPU only
        out = os.path.join(work, "dequantised")
        subprocess.run([a.dsmoe, "convert", checkpoint, out, "--type", "f32"], check=True, capture_output=True)
        checkpoint = out
    options = {"attn_implementation": "eager", "torch_dtype": torch.float32}
    if r["kind"] == "remote code":
        with open(os.path.join(checkpoint, "config.json"), encoding="utf-8") as f:
            auto = json.load(f)["auto_map"]
        imports = dynamic.get_imports
        dynamic.get_imports = lambda file: [i for i in imports(file) if i != "flash_attn"]
        config = dynamic.get_class_from_dynamic_module(auto["AutoConfig"], a.code).from_pretrained(checkpoint)
        cls = dynamic.get_class_from_dynamic_module(auto["AutoModelForCausalLM"], a.code)
        config._attn_implementation = "eager"  # as a default it would make room for sdpa
        options["config"] = config
    else:
        cls = getattr(transformers, r["model"])
        options = {"attn_implementation": r.get("attn_implementation", "eager"), "experts_implementation": r.get("experts_implementation", "eager"),
                   "dtype": torch.float32}
    dtype = getattr(torch, manifest["compute_dtype"])
    loaded = manifest.get("made_by", "").startswith("from_pretrained")
    if loaded:
        options["dtype" if "dtype" in options else "torch_dtype"] = dtype
    torch.set_num_threads(r.get("threads", 1))
    model, info = cls.from_pretrained(checkpoint, output_loading_info=True, **options)
    if info["missing_keys"]:
        return None  # such as the experts of a model_type that transformers has no names for
    model = model.eval() if loaded else model.to(dtype).eval()
    with torch.no_grad():
        out = model(input_ids=got["input_ids"], attention_mask=got.get("attention_mask"), use_cache=False).logits
    return torch.equal(out.to(got["lm_head.output"].dtype), got["lm_head.output"])


def rules(a, work):
    """Whether golden.py refuses what it should, in one line with exit status 2, and reads the weights that from_pretrained does."""
    checkpoint = os.path.join(a.goldens, "v3", "checkpoint")
    both = os.path.join(work, "both")
    shutil.copytree(checkpoint, both)
    weights = {}
    for file in glob.glob(both + "/*.safetensors"):
        with safe_open(file, "pt") as f:
            weights |= {k: f.get_tensor(k) for k in f.keys()}
    save_file(weights | {"model.norm.weight": 2 * weights["model.norm.weight"]}, both + "/model.safetensors", {"format": "pt"})
    runs = {"without torch": (["-S"], [checkpoint], "No module named"),
            "--mtp without prediction layers": ([], [checkpoint, "--mtp"], "--mtp: ")}
    good = True
    for what, (python, arguments, said) in runs.items():
        run = subprocess.run([sys.executable, *python, GOLDEN, arguments[0], os.path.join(work, "refused"), "--random", "1x4", *arguments[1:]],
                             capture_output=True, text=True)
        right = run.returncode == 2 and run.stderr.startswith("golden.py: ") and said in run.stderr and run.stderr.count("\n") == 1
        print("refused" if right else f"NOT REFUSED ({run.returncode})", f"{what}: {run.stderr.strip()}")
        good &= right
    orphan = os.path.join(work, "orphan")
    os.mkdir(orphan)
    shutil.copy(GOLDEN, orphan)  # as dsmoe golden makes it, which is gone
    run = subprocess.run([sys.executable, orphan + "/golden.py", checkpoint, os.path.join(work, "refused"), "--random", "1x4"],
                         stdin=subprocess.DEVNULL, env=os.environ | {"DSMOE_HOLDS_STDIN": "1"}, capture_output=True, text=True)
    ended = (run.returncode, run.stderr) == (130, "golden.py: interrupted: nothing is left of the pack\n") and not os.path.exists(orphan)
    print("without dsmoe:", "ends" if ended else f"DOES NOT END ({run.returncode}): {run.stderr}")
    packs = [os.path.join(work, name) for name in ("plain", "single")]
    for source, pack in zip((checkpoint, both), packs):
        subprocess.run([sys.executable, GOLDEN, source, pack, "--random", "1x4"], check=True, capture_output=True)
    plain, single = (tensors(pack)[1]["model.norm.output"] for pack in packs)
    model = transformers.DeepseekV3ForCausalLM.from_pretrained(both, dtype=torch.float32)
    doubled, read = torch.equal(2 * plain, single), torch.equal(model.model.norm.weight, 2 * weights["model.norm.weight"].float())
    print("model.safetensors beside an index: golden.py", "reads it" if doubled else "READS THE INDEX;", "from_pretrained", "too" if read else "NOT")
    return all([needed(work, both, weights), patched(work, checkpoint), narrow(work, checkpoint), good, ended, doubled, read])


def narrow(work, checkpoint):
    """Whether what golden.py draws on a terminal of 20 columns stays on its line."""
    process, terminal = pty.fork()
    if process == 0:
        fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("4H", 24, 20, 0, 0))
        os.execv(sys.executable, [sys.executable, GOLDEN, checkpoint, os.path.join(work, "narrow"), "--random", "1x4"])
    drawn = b""
    try:
        while piece := os.read(terminal, 4096):
            drawn += piece
    except OSError:  # Linux says so that the other side is closed
        pass
    _, status = os.waitpid(process, 0)
    lines = [line.removeprefix("\x1b[K") for line in re.findall(r"\r(\x1b\[K[^\r\n]*)(?=\r\x1b)", drawn.decode())]
    right = status == 0 and "golden.py: loading " in lines and all(len(line) < 20 for line in lines)
    print("drawn on one line" if right else f"DRAWN ON SEVERAL ({status}) {lines}", "in 20 columns")
    return right


# Runs golden.py, whose directory comes first, with a norm that torch.compile compiles.
PATCH = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import golden, torch
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm
norm = torch.compile(DeepseekV3RMSNorm.forward, backend="eager")
def forward(self, x):
    with torch._C.DisableTorchFunction():
        return norm(self, x)
DeepseekV3RMSNorm.forward = forward
sys.exit(golden.main())
"""


def patched(work, checkpoint):
    """Whether the manifest says that a norm was compiled and replaced, and nothing of the kind without."""
    said = {}
    for number, python in enumerate((["-c", PATCH, os.path.dirname(GOLDEN)], [GOLDEN])):
        pack = os.path.join(work, f"patched-{number}")
        subprocess.run([sys.executable, *python, checkpoint, pack, "--random", "1x4", "--layers", "1"], check=True, capture_output=True)
        said[number] = {key: tensors(pack)[0]["reference"].get(key) for key in ("compiled", "replaced")}
    right = said == {0: {"compiled": True, "replaced": {"DeepseekV3RMSNorm": "__main__"}}, 1: {"compiled": None, "replaced": None}}
    print("said" if right else f"NOT SAID {said}", "what a patch did")
    return right


def needed(work, checkpoint, weights):
    """Whether golden.py --layers gives the same without the files of the other layers, of the embedding and of the head."""
    os.remove(checkpoint + "/model.safetensors")
    for file in glob.glob(checkpoint + "/model-*.safetensors"):
        os.remove(file)
    with open(checkpoint + "/config.json", encoding="utf-8") as f:
        config = json.load(f) | {"tie_word_embeddings": True}  # a stored head may differ: both are read where one is used
    with open(checkpoint + "/config.json", "w", encoding="utf-8") as f:
        json.dump(config, f)
    places = {name: name.split(".")[2] if name.startswith("model.layers.") else "ends" for name in weights}
    with open(checkpoint + "/model.safetensors.index.json", "w", encoding="utf-8") as f:
        json.dump({"weight_map": {name: f"model-{place}.safetensors" for name, place in places.items()}}, f)
    for place in set(places.values()):
        save_file({n: t for n, t in weights.items() if places[n] == place}, f"{checkpoint}/model-{place}.safetensors", {"format": "pt"})
    packs = [os.path.join(work, name) for name in ("all", "part", "less")]
    record = lambda pack: subprocess.run([sys.executable, GOLDEN, checkpoint, pack, "--random", "1x4", "--layers", "2"], capture_output=True, text=True)
    whole = record(packs[0]).returncode == 0
    for file in set(glob.glob(checkpoint + "/model-*.safetensors")) - {checkpoint + "/model-2.safetensors"}:
        os.remove(file)
    part = record(packs[1])
    same = whole and part.returncode == 0 and differences(tensors(packs[0])[1], tensors(packs[1])[1])[0] == len(tensors(packs[0])[1])
    os.remove(checkpoint + "/model-2.safetensors")
    less = record(packs[2])
    refused = less.returncode == 2 and less.stderr.count("\n") == 1 and "model-2.safetensors" in less.stderr
    print("--layers without the files of others:", "the same" if same else f"ANOTHER PACK {part.stderr.strip()}",
          "; without its own:", "refused" if refused else "NOT REFUSED", less.stderr.strip())
    return same and refused


def paths(a, work):
    """Whether golden.py records a pack by each path, and dsmoe verifies it."""
    kind, good = "remote" if a.code else "native", True
    for number, (name, flags) in enumerate(PATHS[kind]):
        checkpoint, pack = os.path.join(a.goldens, name, "checkpoint"), os.path.join(work, f"pack-{number}")
        code = ["--reference", "remote", "--trust-remote-code", "--code", a.code] if a.code else ["--reference", "native"]
        run = subprocess.run([sys.executable, GOLDEN, checkpoint, pack, *flags.split(), *code], capture_output=True, text=True)
        if run.returncode == 0:
            run = subprocess.run([a.dsmoe, "verify", checkpoint, pack], capture_output=True, text=True)
        said = [line for line in (run.stdout + run.stderr).splitlines() if line.strip()]
        verdict = next((line for line in said if line.startswith("verdict")), said[-1] if said else "nothing was printed")
        good &= run.returncode == 0
        print("pass" if run.returncode == 0 else "WRONG", f"{name} {flags}: {verdict}", flush=True)
    return good


def fits(manifest):
    r = manifest["reference"]
    return [r["torch"].split("+")[0], r["transformers"]] == [torch.__version__.split("+")[0], transformers.__version__]


def main():
    p = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    p.add_argument("goldens", metavar="GOLDENS")
    p.add_argument("names", nargs="*", metavar="NAME")
    p.add_argument("--code")
    p.add_argument("--dsmoe")
    p.add_argument("--stages", default="all")
    p.add_argument("--work")
    p.add_argument("--rules", action="store_true")
    p.add_argument("--paths", action="store_true")
    a = p.parse_intermixed_args()
    if a.paths and not a.dsmoe:
        p.error("--paths: give --dsmoe")
    if a.rules or a.paths:
        with tempfile.TemporaryDirectory(dir=a.work) as work:
            return 0 if (rules if a.rules else paths)(a, work) else 1
    results = {True: 0, False: 0, None: 0}
    for manifest in sorted(glob.glob(os.path.join(a.goldens, "*", "golden-*", "manifest.json"))):
        golden = os.path.dirname(manifest)
        name = os.path.relpath(golden, a.goldens)
        with open(manifest, encoding="utf-8") as f:
            if not fits(json.load(f)) or a.names and name.split(os.sep)[0] not in a.names:
                continue
        work = tempfile.mkdtemp(dir=a.work)
        try:
            good, text = check(a, golden, work)
        finally:
            shutil.rmtree(work)
        results[good] += 1
        print({True: "same", False: "DIFFERS", None: "not checked"}[good], f"{name}: {text}", flush=True)
    print(f"{results[True]} reproduced, {results[False]} not, {results[None]} not checked")
    return 1 if results[False] else 0 if results[True] else 2


if __name__ == "__main__":
    sys.exit(main())
