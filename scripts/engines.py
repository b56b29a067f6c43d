"""Converts fixtures, records engines on them and prints the verdicts: see scripts/engines.sh, which calls it with a
directory that has dsmoe and the recorders, and with names of models and stored forms to select. With `fixtures` alone it
writes fixtures/engines, whose traces tests judge."""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

from safetensors.torch import load_file, save_file

FIXTURES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fixtures")
# The cause that explains the engine's known deviation; None of models that it computes as the reference does.
LLAMA = {"v3": None, "v3-trained": None, "v3-yarn": None, "v3-mtp": None, "v3-wide": None, "v2-lite": None, "v1-base": None, "v1-trained": None,
         "kimi-k2": "latent-eps", "glm4-moe-lite": "latent-eps", "v2-group-yarn": "group-worth",
         "glm4-moe": None, "dots1": None, "solar-open": None, "hy-v3": None, "minimax-m2": None, "exaone-moe": None,
         "ernie45-moe": None}
MLX = {"v3": None, "v3-trained": None, "kimi-k2": None, "v1-base": None, "v1-trained": None,
       "v32": "indexer-eps", "v3-yarn": "rope-scaling", "glm4-moe-lite": "latent-eps", "dots1": None, "minimax-m2": None,
       "glm4-moe": "group-fill", "solar-open": "rope-scaling", "ernie45-moe": "router-bias"}
TORCH = ["v3-trained"]
# Traces of vLLM, SGLang, Megatron-Core and transformers, of the model of fixtures/engines/served.json: engine, planted fault.
SERVED = {"vllm-served": ("vllm",), "vllm-steps-bf16": ("vllm", "bfloat16"), "sglang-served": ("sglang",), "sglang-newest": ("sglang", "newest"),
          "megatron-served": ("megatron",), "megatron-steps-bf16": ("megatron", "bfloat16"),
          "torch-position": ("torch", "position"), "torch-stale": ("torch", "stale")}
KEPT = r"input_ids|attention_mask|model\.embed|model\.layers\.0\.(input|self)"  # of traces that are cut
# What SGLang dumps by itself, and the choices of experts that it returns, of the model of fixtures/engines/dumped.json.
DUMPED = {"sglang-dump": "passes", "sglang-dumper": "dumper"}
# Faults: keys of a model's config that a GGUF file is made with, which llama.cpp runs; the original file is judged.
ROPE = {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
PLANTED = {"v3-trained": {"routed-scale": {"routed_scaling_factor": 6.25}, "norm-topk": {"norm_topk_prob": False}, "topk-group": {"topk_group": 1},
                          "experts-per-token": {"num_experts_per_tok": 3}, "norm-eps": {"rms_norm_eps": 1e-5}},
           "hy-v3": {"norm-eps": {"rms_norm_eps": 1e-6}, "rope-theta": ROPE}, "exaone-moe": {"norm-eps": {"rms_norm_eps": 1e-6}, "rope-theta": ROPE}}
FORMS = ["f32", "bf16", "q8_0", "q4_k_m", "q6_k"]
STEPS = [], ["--prefill", "24"]  # one step, and 24 tokens with 24 decode steps
# The traces of fixtures/engines: recorder, model, form, flags.
SMALL = {
    "llama-v3-trained-q8_0": ("llama", "v3-trained", "q8_0", "--random", "1x10", "--flash"),
    "llama-v3-steps": ("llama", "v3", "f32", "--random", "2x4", "--prefill", "2", "--chunk", "2", "--greedy", "2", "--stagger", "1",
                       "--cache", "f32"),
    "llama-v3-trained-router": ("llama", "v3-trained", "q8_0", "--random", "1x16", "--stages", "router"),
    "llama-v1-base-bf16": ("llama", "v1-base", "bf16", "--random", "1x10", "--cache", "f32"),
    "llama-kimi-k2-q8_0": ("llama", "kimi-k2", "q8_0", "--random", "1x10", "--cache", "f32"),
    "mlx-v32": ("mlx", "v32", "f32", "--random", "1x16"),
    "vllm-v3": ("torch", "v3", None, "5,3"),
}
# Of fixtures/blocks, models that llama.cpp's own converter makes files of: keys that published configs have beside the saved
# ones, and the cause that explains llama.cpp's known deviation. A name after "/" tells models with the same fixture apart.
LLAMA_BLOCKS = {"afmoe": ({"route_norm": True}, None), "afmoe/planted": ({"route_norm": False}, "norm-topk"),
                "laguna": ({}, "logit-softcap"), "laguna/uncapped": ({"moe_router_logit_softcapping": 0.0}, None)}
# Runs that converter on a checkpoint without a vocabulary: the directory of llama.cpp, the checkpoint, the file to write.
CONVERTER = """
import pathlib, sys
llama, checkpoint, file = map(pathlib.Path, sys.argv[1:])
sys.path[:0] = [str(llama), str(llama / "gguf-py")]
import gguf, torch
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
cls = get_model_class(get_model_architecture(ModelBase.load_hparams(checkpoint, False), ModelType.TEXT))
cls.set_vocab = lambda self: (self.gguf_writer.add_tokenizer_model("no_vocab"), self.gguf_writer.add_vocab_size(self.hparams["vocab_size"]))
with torch.inference_mode():
    cls(checkpoint, gguf.LlamaFileType.ALL_F32, file).write()
"""
# All widths of v3-wide are multiples of 256, so that its K forms have K blocks; those of fixtures fall back to Q8_0 and Q5_0.
WIDE = {"num_hidden_layers": 3, "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 256, "n_routed_experts": 16,
        "q_lora_rank": 256, "kv_lora_rank": 256, "qk_nope_head_dim": 256, "v_head_dim": 64}


class Engines:
    def __init__(self, work, selected):
        self.work, self.selected, self.bad = work, selected, 0
        self.right = {}  # (form, cache and attention) of llama.cpp -> largest z and RMS of z of right runs

    def at(self, *names):
        return os.path.join(self.work, *names)

    def wants(self, *words):
        """Whether the command line selects models, or forms, with one of these names."""
        return all(not (chosen := [s for s in self.selected if s in kind]) or any(w in chosen for w in words)
                   for kind in ([*LLAMA, *MLX], FORMS))

    def run(self, *command, env=None):
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.work, env=dict(os.environ) | (env or {}))
        if result.returncode:
            sys.exit(f"{' '.join(command)}: exit status {result.returncode}: {result.stdout}")

    def source(self, model):
        """The checkpoint of a fixture, or v3-wide's, which is made."""
        if model != "v3-wide":
            return os.path.join(FIXTURES, model, "checkpoint")
        if not os.path.exists(self.at(model)):
            with open(os.path.join(FIXTURES, "v3-trained", "checkpoint", "config.json"), encoding="utf-8") as f:
                config = json.load(f)
            with open(self.at("wide.json"), "w", encoding="utf-8") as f:
                json.dump(config | WIDE, f)
            self.run(self.at("dsmoe"), "synth", self.at("wide.json"), self.at(model))
        return self.at(model)

    def convert(self, model, to, *flags):
        if not os.path.exists(to):
            self.run(self.at("dsmoe"), "convert", self.source(model), to, *flags)
        return to

    def gguf(self, model, form):
        mtp = ["--mtp"] if model == "v3-mtp" else []
        return self.convert(model, self.at(f"{model}-{form}.gguf"), "--type", form, "--no-vocab", *mtp)

    def record(self, engine, checkpoint, pack, *flags):
        if engine == "torch":
            script = os.path.join(os.path.dirname(FIXTURES), "scripts", "engines_torch.py")
            return self.run(sys.executable, script, checkpoint, pack, *flags, env={"PYTHONPATH": self.work})
        return self.run(sys.executable, self.at(f"trace_{engine}.py"), checkpoint, pack, *flags)

    def fixtures(self):
        for name, (engine, model, form, *flags) in SMALL.items():
            checkpoint = self.gguf(model, form) if engine == "llama" else self.source(model)
            if engine == "mlx":
                checkpoint = self.convert(model, self.at(f"{model}-{form}"), "--type", form)
            checkpoint = os.path.relpath(checkpoint, self.work) if checkpoint.startswith(self.work) else checkpoint
            self.record(engine, checkpoint, name, *flags)  # in work: manifests name no directory of this machine
            shutil.move(self.at(name), os.path.join(FIXTURES, "engines", name))
        for name, engine in SERVED.items():
            self.serve(name, *engine)
            if len(engine) > 1:
                self.cut(self.at(name))
            shutil.move(self.at(name), os.path.join(FIXTURES, "engines", name))
        self.serve("sglang-dump", "sglang", DUMPED["sglang-dump"], model="dumped")
        for file in os.listdir(self.at("sglang-dump")):  # named by the process
            shutil.move(self.at("sglang-dump", file), os.path.join(FIXTURES, "engines", "sglang-dump"))
        for end in (".json", "-tokens.json"):
            shutil.move(self.at("sglang-dump-choices-1-0" + end), os.path.join(FIXTURES, "engines", "sglang-choices" + end))

    def serve(self, name, *engine, model="served"):
        """Records a server; returns the checkpoint that it served."""
        if not os.path.exists(self.at(model)):
            self.run(self.at("dsmoe"), "synth", os.path.join(FIXTURES, "engines", model + ".json"), self.at(model), "--seed", "3")
        script = os.path.join(os.path.dirname(FIXTURES), "scripts", "engines_server.py")
        self.run(os.environ["SERVERS_PYTHON"], script, engine[0], model, name, *engine[1:], env={"PYTHONPATH": self.work})
        return self.at(model)

    @staticmethod
    def cut(pack):
        """Leaves the embedding and the attention of the first layer in a pack: enough for what a planted fault shows."""
        path = os.path.join(pack, "manifest.json")
        with open(path, encoding="utf-8") as f:
            m = json.load(f)
        kept = {name: e for name, e in m["tensors"].items() if re.match(KEPT, name) and not (m["compute_dtype"] == "bfloat16" and re.search(r"q_a|attn\.(output|o_proj\.output)", name))}
        for file in list(m["files"]):
            at = os.path.join(pack, file)
            tensors = load_file(at)
            os.remove(at)
            del m["files"][file]
            if here := {name: tensors[name] for name in kept if name in tensors}:
                save_file(here, at)
                with open(at, "rb") as f:
                    m["files"][file] = "sha256:" + hashlib.sha256(f.read()).hexdigest()
        m["tensors"] = kept
        with open(path, "w", encoding="utf-8") as f:
            json.dump(m, f, indent=1)
            f.write("\n")

    def judge(self, checkpoint, pack, row, cause, key=None, fails=False, right="pass", stage=None):
        """Prints a row: the verdict, the largest z and RMS of z, and what explains a failure. right is the verdict of a right run,
        stage how the first stage ends that a wrong one shows."""
        out = subprocess.run([self.at("dsmoe"), "verify", checkpoint, pack, "--json"], stdout=subprocess.PIPE, text=True).stdout
        report = json.loads(out)
        named = [c["id"] for c in [*report.get("causes", []), *report.get("hints", [])]]
        good = report.get("verdict") == ("fail" if cause or fails else right) and (cause is None or cause in named) \
            and (stage is None or (report.get("first_divergence") or "").endswith(stage))
        self.bad += not good
        z, rms = (max((c[k] or 0 for c in report.get("checks", []) if k in c), default=0) for k in ("z", "rms_z"))
        if key and not cause:
            self.right[key] = tuple(map(max, self.right.get(key, (0, 0)), (z, rms)))
        numbers = f"{z:6.2f} {rms:5.2f}" if report.get("verdict") == "pass" else " " * 12
        print(f"{row:62} {report.get('verdict', 'error'):12} {numbers}  {report.get('first_divergence') or ''} {' '.join(named)}"
              f"{'' if good else '  UNEXPECTED'}".rstrip(), flush=True)

    def llama(self, model, cause, form):
        gguf = self.gguf(model, form)
        for cache in ("f32", "f16"):
            for flags in ([], ["--flash"]):
                for steps in STEPS:
                    name = " ".join(["llama.cpp", model, form, "cache", cache, *flags, *steps])
                    pack = self.at(name.replace(" ", "-"))
                    self.record("llama", gguf, pack, "--random", "1x48", "--cache", cache, *flags, *steps)
                    self.judge(gguf, pack, name, cause, (form, f"{cache}{', flash' if flags else ''}"))
        if (model, form) == ("v3-trained", "q8_0"):
            self.record("llama", gguf, self.at("router"), "--random", "1x48", "--stages", "router")
            self.judge(gguf, self.at("router"), f"llama.cpp {model} {form} router", cause)

    def planted(self, model, cause, keys, form):
        name = f"planted-{model}-{cause}"
        source, faulty, pack = self.at(name), self.at(f"{name}-{form}.gguf"), self.at(f"{name}-{form}")
        if not os.path.exists(source):
            shutil.copytree(self.source(model), source)
            with open(os.path.join(source, "config.json"), encoding="utf-8") as f:
                config = json.load(f)
            with open(os.path.join(source, "config.json"), "w", encoding="utf-8") as f:
                json.dump(config | keys, f)
        self.run(self.at("dsmoe"), "convert", source, faulty, "--type", form, "--no-vocab")
        self.record("llama", faulty, pack, "--random", "1x48")
        self.judge(self.gguf(model, form), pack, f"llama.cpp {model} {form}, planted {keys}", cause)

    def mlx(self, model, cause):
        checkpoint = self.convert(model, self.at(f"{model}-f32"), "--type", "f32")
        for steps in STEPS:
            name = " ".join(["mlx-lm", model, "f32", *steps])
            pack = self.at(name.replace(" ", "-"))
            self.record("mlx", checkpoint, pack, "--random", "1x48", *steps)
            self.judge(checkpoint, pack, name, cause)

    def torch(self, model):
        for sequences in ("24,24", "24,17"):
            pack = self.at(f"vllm-{model}-{sequences}")
            self.record("torch", self.source(model), pack, sequences)
            self.judge(self.source(model), pack, f"torch with vLLM's shapes, {model}, sequences of {sequences}", None)

    def server(self, name, *engine):
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            cuts = engine == ("vllm", "bfloat16") and "avx512_bf16" not in f.read()  # vLLM's kernels, see docs/engines.md
        self.judge(self.serve(name, *engine), self.at(name), f"{' '.join(engine)}, prompts and decode steps", None,
                   fails=engine[-1] in ("newest", "position", "stale"), right="inconclusive" if cuts else "pass")

    def blocks(self):
        """What transformers computes of families whose mixtures alone dsmoe does, right and with planted mistakes."""
        os.makedirs(self.at("blocks"))
        fixtures = os.path.join(FIXTURES, "blocks")
        self.run(sys.executable, os.path.join(os.path.dirname(FIXTURES), "scripts", "engines_server.py"), "blocks", fixtures, "blocks",
                 env={"PYTHONPATH": self.work})
        for name in sorted(os.listdir(self.at("blocks"))):
            family, _, fault = next((p for p in (name.rpartition("-"),) if p[2] in ("scale", "shared")), (name, "", ""))
            stage = {"scale": "mlp.gate.topk_weight", "shared": "mlp.shared_experts.output"}.get(fault)
            self.judge(os.path.join(fixtures, family, "checkpoint"), self.at("blocks", name), f"transformers {family} {fault}".strip(), None,
                       fails=bool(fault), stage=stage)

    def llama_blocks(self):
        """What llama.cpp computes of such families, judged by the checkpoints that its converter read."""
        for name, (keys, cause) in LLAMA_BLOCKS.items():
            row, source = f"llama.cpp {name}", self.at("blocks-" + name.replace("/", "-"))
            shutil.copytree(os.path.join(FIXTURES, "blocks", name.partition("/")[0], "checkpoint"), source)
            with open(os.path.join(source, "config.json"), encoding="utf-8") as f:
                config = json.load(f)
            with open(os.path.join(source, "config.json"), "w", encoding="utf-8") as f:
                json.dump(config | keys, f)
            self.run(sys.executable, "-c", CONVERTER, os.environ["LLAMA_SOURCE"], source, source + ".gguf")
            for steps in STEPS:
                pack = "-".join([source, "trace", *steps])
                self.record("llama", source + ".gguf", pack, "--random", "1x48", "--cache", "f32", *steps)
                self.judge(source, pack, " ".join([row, *steps]), cause)

    def refused(self):
        """Recorders without their engine, and under the name of what they import, say so in one line."""
        for engine, file, said in (("mlx", "trace_mlx.py", "pip install mlx-lm"), ("torch", "dsmoe_trace.py", "the engine's own Python"),
                                   ("llama", "trace_llama.py", "pip install llama-cpp-python"), ("mlx", "mlx.py", "call it trace.py"),
                                   ("torch", "torch.py", "call it dsmoe_trace.py")):
            script = self.at("refused", file)
            os.makedirs(self.at("refused"), exist_ok=True)
            with open(script, "wb") as f:
                subprocess.run([self.at("dsmoe"), "trace-script", engine], stdout=f, check=True)
            run = subprocess.run([sys.executable, "-S", script, "a", "b", "--random", "1x4"], capture_output=True, text=True)
            os.remove(script)
            right = run.returncode == 2 and said in run.stderr and run.stderr.count("\n") == 1
            self.bad += not right
            print(f"{file + ', alone':62} {'refused' if right else 'WRONG'}  {run.stderr.strip()}")

    def summary(self):
        """Prints the table of docs/engines.md."""
        columns = list(dict.fromkeys(column for _, column in self.right))
        print(f"\n| largest z, RMS | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
        for form in dict.fromkeys(form for form, _ in self.right):
            print(f"| {form} | {' | '.join('{:.1f}, {:.2f}'.format(*self.right[form, c]) for c in columns)} |")


def main(work, *selected):
    if selected == ("fixtures",):
        return Engines(work, []).fixtures()
    unknown = [s for s in selected if s not in [*LLAMA, *MLX, *FORMS]]
    if unknown:
        sys.exit(f"engines.py: {' '.join(unknown)}: not a model or a stored form")
    e = Engines(work, selected)
    print(f"{'engine, model, form':62} {'verdict':12} {'z':>6} {'RMS':>5}  first stage that differs, cause")
    for model, cause in LLAMA.items():
        for form in FORMS:
            if e.wants(model, form):
                e.llama(model, cause, form)
    for model, faults in PLANTED.items():
        for form in ("f32", "q8_0"):
            if e.wants(model, form):
                for cause, keys in faults.items():
                    e.planted(model, cause, keys, form)
    for model, cause in MLX.items():
        if e.wants(model, "f32"):
            e.mlx(model, cause)
    for model in TORCH:
        if e.wants(model, "f32"):
            e.torch(model)
    if not selected:
        e.refused()
        e.blocks()
        e.llama_blocks()
        for name, engine in SERVED.items():
            e.server(name, *engine)
        for name, how in DUMPED.items():
            model = "served" if how == "dumper" else "dumped"  # whose dense MLP is 48 wide, which SGLang pads to 64 on a CPU
            e.judge(e.serve(name, "sglang", how, model=model), e.at(name), f"sglang's own {how}", None)
    e.summary()
    if e.bad:
        sys.exit(f"{e.bad} verdicts are not as expected")


if __name__ == "__main__":
    main(*sys.argv[1:])
