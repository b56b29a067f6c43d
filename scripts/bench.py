"""Side by side with PyTorch: run by scripts/bench, which builds what this needs.

Each cell of a table is measured in alternating rounds, ours and torch's one after
the other, and keeps the best of each: on a shared machine only ratios within one
run mean anything.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time

import torch

SHAPES = [(2048, 1408), (1408, 2048), (2048, 2048), (2048, 64)]  # in, out: experts, attention, router
TOKENS = [1, 8, 16, 64, 128, 512]
OURS = {
    "bf16 weights": ("BF16", "float32"),
    "f32 weights": ("F32", "float32"),
    "bf16 weights, f64 sums": ("BF16", "float64"),
}


def best_rate(call, work, seconds):
    """Best of short stretches of calls, in work units per second."""
    call(0)
    best, n, end = 0.0, 0, time.perf_counter() + seconds
    while n == 0 or time.perf_counter() < end:
        start, calls = time.perf_counter(), 0
        while calls == 0 or time.perf_counter() - start < seconds / 4:
            call(n)
            n, calls = n + 1, calls + 1
        best = max(best, calls * work / (time.perf_counter() - start))
    return best


def torch_product(cols, rows, tokens, dtype, seconds):
    """GFLOP/s of x·Wᵀ, over weights that do not fit the caches together."""
    size = torch.finfo(dtype).bits // 8
    count = (64 << 20) // (rows * cols * size) + 1
    weights = [torch.randn(rows, cols).to(dtype) for _ in range(count)]
    x = torch.randn(tokens, cols).to(dtype)
    call = lambda n: torch.nn.functional.linear(x, weights[n % count])
    return best_rate(call, 2 * tokens * cols * rows / 1e9, seconds)


def go_benchmark(binary, pattern, threads, seconds, *flags, cwd=None):
    """Runs Go benchmarks in short stretches, as best_rate does; yields the name and the
    metrics by unit of each."""
    command = [binary, "-test.run=^$", "-test.bench=" + pattern, f"-test.cpu={threads}",
               "-test.count=4", f"-test.benchtime={seconds / 4}s", *flags]
    out = subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd).stdout
    for line in out.splitlines():
        if line.startswith("Benchmark"):
            fields = line.split()
            values = dict(zip(fields[3::2], map(float, fields[2::2])))
            yield fields[0], values


def exact(*parts):
    return "/".join(f"^{re.escape(p)}$" for p in parts)


def our_product(a, name, cols, rows, tokens, fmt, acc, threads):
    pattern = exact("BenchmarkMatMul", name, fmt, acc, f"{cols}→{rows}", f"tokens={tokens}")
    stretches = [values for _, values in go_benchmark(f"{a.work}/kernel.test", pattern, threads, a.seconds)]
    return tuple(max(values.get(unit, 0.0) for values in stretches) for unit in ("GFLOP/s", "%peak"))


def products(a):
    first = next(go_benchmark(f"{a.work}/kernel.test", "^BenchmarkMatMul$/./^BF16$/^float32$/^2048→64$/^tokens=1$", 1, 0.001))
    name = first[0].split("/")[1]
    rows_out = []
    for threads in a.threads:
        torch.set_num_threads(threads)
        for cols, rows in SHAPES:
            for tokens in a.tokens:
                row = {"threads": threads, "in": cols, "out": rows, "tokens": tokens, "kernels": name, "torch f32": 0.0, "torch bf16": 0.0}
                for _ in range(a.rounds):
                    for column, dtype in (("torch f32", torch.float32), ("torch bf16", torch.bfloat16)):
                        row[column] = max(row[column], torch_product(cols, rows, tokens, dtype, a.seconds))
                    for column, (fmt, acc) in OURS.items():
                        rate, peak = our_product(a, name, cols, rows, tokens, fmt, acc, threads)
                        row[column] = max(row.get(column, 0.0), rate)
                        row[column + ", % of peak"] = max(row.get(column + ", % of peak", 0.0), peak)
                for column in OURS:
                    row[column + " / torch f32"] = row[column] / row["torch f32"]
                rows_out.append(row)
                print(f"{threads} threads {cols}→{rows} {tokens} tokens: " + ", ".join(f"{c} {row[c + ' / torch f32']:.2f}×" for c in OURS), file=sys.stderr)
    return rows_out


def reference_model(path, checkpoint):
    """The published modelling code, in float32."""
    sys.path.insert(0, path)
    import transformers  # noqa: F401  (says itself what is missing)
    package = os.path.basename(os.path.abspath(path))
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    module = __import__(package + ".modeling_deepseek", fromlist=["DeepseekForCausalLM"])
    config = __import__(package + ".configuration_deepseek", fromlist=["DeepseekConfig"]).DeepseekConfig.from_pretrained(checkpoint)
    config._attn_implementation = "eager"
    return module.DeepseekForCausalLM.from_pretrained(checkpoint, config=config, torch_dtype=torch.float32).eval()


def forwards(a):
    checkpoint = a.checkpoint
    if not checkpoint:
        checkpoint = f"{a.work}/checkpoint"
        config = f"{a.root}/fixtures/v1-16b-slice/checkpoint/config.json"
        subprocess.run([f"{a.work}/dsmoe", "synth", config, checkpoint, "--seed", "7"], check=True)
    model = reference_model(a.reference, checkpoint)
    rows = []
    for threads in a.threads:
        torch.set_num_threads(threads)
        for tokens in [1, 16, 128, 512]:
            ids = torch.tensor([[(7 * i + 11) % 1000 for i in range(tokens)]])
            row = {"threads": threads, "tokens": tokens, "reference f32": 0.0}
            for _ in range(a.rounds):
                with torch.no_grad():
                    rate = best_rate(lambda n: model(ids, use_cache=False), tokens, 4 * a.seconds)
                row["reference f32"] = max(row["reference f32"], rate)
                for acc in ("f32", "f64"):
                    pattern = exact("BenchmarkForward", acc, f"tokens={tokens}")
                    stretches = go_benchmark(f"{a.work}/forward.test", pattern, threads, 4 * a.seconds,
                                             "-checkpoint", os.path.abspath(checkpoint), cwd=f"{a.root}/cmd/dsmoe")
                    rate = max(values["tokens/s"] for _, values in stretches)
                    row["ours " + acc] = max(row.get("ours " + acc, 0.0), rate)
            for acc in ("f32", "f64"):
                row[f"ours {acc} / reference f32"] = row["ours " + acc] / row["reference f32"]
            rows.append(row)
            print(f"forward, {threads} threads, {tokens} tokens: f32 {row['ours f32 / reference f32']:.2f}×, f64 {row['ours f64 / reference f32']:.2f}×", file=sys.stderr)
    return rows


def cell(v):
    return f"{v:.3g}" if isinstance(v, float) else str(v)


def table(rows):
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(r[c]) for c in columns) + " |" for r in rows]
    return "\n".join(lines) + "\n"


def processor():
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def main():
    p = argparse.ArgumentParser(prog="scripts/bench", description="Our matrix products and forward pass against PyTorch's.")
    p.add_argument("--work", required=True, help=argparse.SUPPRESS)
    p.add_argument("--root", required=True, help=argparse.SUPPRESS)
    p.add_argument("--out", default="bench", help="write OUT.json and OUT.md (default bench)")
    p.add_argument("--rounds", type=int, default=3, help="alternating rounds per cell (default 3)")
    p.add_argument("--seconds", type=float, default=0.2, help="time per measurement (default 0.2)")
    p.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    p.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    p.add_argument("--checkpoint", help="for the forward pass (default: synthesise v1-16b-slice, 2.5 GB)")
    p.add_argument("--reference", default=os.environ.get("DSMOE_REFERENCE"), help="directory of modeling_deepseek.py (default $DSMOE_REFERENCE)")
    p.add_argument("--skip-products", action="store_true", help="forward pass only")
    a = p.parse_args()
    result = {"processor": processor(), "torch": torch.__version__, "rounds": a.rounds, "seconds": a.seconds}
    text = f"{result['processor']}, torch {torch.__version__}, best of {a.rounds} alternating rounds.\n"
    if not a.skip_products:
        result["products"] = products(a)
        text += "\nMatrix products x·Wᵀ, GFLOP/s. Activations are float32, but for torch bf16.\n\n" + table(result["products"])
    if a.reference:
        result["forward"] = forwards(a)
        text += "\nForward pass, tokens per second.\n\n" + table(result["forward"])
    else:
        print("scripts/bench: no forward pass: DSMOE_REFERENCE names no directory with modeling_deepseek.py", file=sys.stderr)
    with open(a.out + ".json", "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    with open(a.out + ".md", "w") as f:
        f.write(text)
    print(text)


main()
