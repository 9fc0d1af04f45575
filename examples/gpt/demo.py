"""The whole way of a program: a GPT training step is printed as HLO, fused by Heddle, and run by XLA.

    make demo                                          # set-up, build, and this
    python examples/gpt/demo.py --checkpoint --dtype bfloat16 --sequence 512

Everything it makes (modules, reports, pictures) is left in out/demo.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bindings" / "python"))

import heddle.jax
import jax
import jax.numpy as jnp
import numpy as np
from heddle.jax.xla_module import XlaModule

import model
from print_hlo import hlo_text

HEDDLE = ROOT / "build" / "bin" / "heddle"
OUTPUT = ROOT / "out" / "demo"
SMALL = {"batch": 2, "sequence": 96, "layers": 2, "head_dim": 32, "hidden": 256, "vocabulary": 128}


def heading(text):
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


class Step:
    """A line that says what is going on, and then how long it took."""

    def __init__(self, text):
        self.text = text

    def __enter__(self):
        self.start = time.perf_counter()
        print(f"  {self.text} ...", end="", flush=True)
        return self

    def __exit__(self, kind, *_):
        print(" failed" if kind else f" {time.perf_counter() - self.start:.1f} s", flush=True)


def shown(path):
    return str(path.relative_to(ROOT))


def fuse(module, *options):
    """Runs `heddle fuse`; returns the fused module's path and the report. Ends the demo if it fails."""
    fused, report = module.with_suffix(".fused.hlo"), module.with_suffix(".report.json")
    command = [HEDDLE, "fuse", module, "-o", fused, "--report", report, *options]
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"\nheddle fuse {shown(module)} ended with status {run.returncode}: {run.stderr.strip()}")
    return fused, json.loads(report.read_text(encoding="utf-8"))


def in_f64(text):
    """The same program with every floating-point type replaced by f64: what it means in exact arithmetic, nearly."""
    return re.sub(r"\b(?:f32|bf16|f16)\[", "f64[", text)


def distance(value, truth):
    """Relative error in the Euclidean norm."""
    value, truth = np.asarray(value, np.float64), np.asarray(truth, np.float64)
    return float(np.linalg.norm(value - truth) / max(np.linalg.norm(truth), np.finfo(np.float64).tiny))


def f64_results(text, arguments):
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(a), jnp.float64 if jnp.issubdtype(a.dtype, jnp.floating) else a.dtype)
                for a in arguments]
        return [np.asarray(result) for result in XlaModule(in_f64(text))(*wide)]


def compare(config, names, original_path, fused_path, runs):
    """Compiles and runs both modules in XLA; returns a row a module for the table, and the errors of each output."""
    params = model.init(config, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (config.batch, config.sequence + 1), 0, config.vocabulary)
    arguments = jax.tree.leaves((params, tokens))
    rows, results = [], []
    for label, path in (("original", original_path), ("fused", fused_path)):
        with Step(f"S = {config.sequence}, {label}: compiling and running"):
            compiled = XlaModule(path.read_text(encoding="utf-8"))
            results.append(compiled(*arguments))
            seconds = compiled.seconds(*arguments, runs=runs)
        rows.append({"sequence": config.sequence, "module": label, "loss": float(results[-1][0]),
                     "seconds": seconds, "temporary_bytes": compiled.temporary_bytes})
        del compiled
    with Step(f"S = {config.sequence}, original in f64: what both are measured against"):
        truth = f64_results(original_path.read_text(encoding="utf-8"), arguments)
    # A scalar may come out right by luck, so one rounding of the dtype is always allowed.
    rounding = float(jnp.finfo(config.dtype).eps)
    errors = []
    for name, first, second, exact in zip(names, *results, truth, strict=True):
        of_original, of_fused = distance(first, exact), distance(second, exact)
        errors.append({"output": name, "original": of_original, "fused": of_fused,
                       "bound": 2 * of_original + rounding, "ok": of_fused <= 2 * of_original + rounding})
    return rows, errors


def output_names(config):
    """The names of the module's outputs in their order: loss, gradients, updated parameters."""
    params = jax.eval_shape(lambda: model.init(config, jax.random.key(0)))
    paths = ["/".join(str(key.key) for key in path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    return ["loss", *(f"gradient of {path}" for path in paths), *(f"updated {path}" for path in paths)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequence", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--checkpoint", action="store_true", help="jax.checkpoint around each layer")
    parser.add_argument("--runs", type=int, default=3, help="timed runs of each module; the median is shown")
    options = parser.parse_args()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    heddle.jax.register()

    variant = f"{'checkpoint_' if options.checkpoint else ''}{options.dtype}"
    configs = [model.Config(sequence=s, dtype=options.dtype, checkpoint=options.checkpoint) for s in options.sequence]
    first = configs[0]
    print(f"A training step of a small GPT in plain JAX (examples/gpt/model.py): {first.layers} layers in a lax.scan,\n"
          f"{first.query_heads} query heads over {first.kv_heads} key/value heads of {first.head_dim}, RoPE, causal, "
          f"RMSNorm, cross-entropy, gradients; {options.dtype}" + (", jax.checkpoint." if options.checkpoint else "."))

    heading("1. Found, fused, refused")
    modules = []
    for config in configs:
        path = OUTPUT / f"gpt_{variant}_{config.sequence}.hlo"
        path.write_text(hlo_text(config), encoding="utf-8")
        modules.append(path)
    print(f"$ heddle explain {shown(modules[0])}", flush=True)
    if subprocess.run([str(HEDDLE), "explain", str(modules[0])]).returncode != 0:
        sys.exit("heddle explain failed")
    picture = OUTPUT / f"layer_{variant}.svg"
    fused, reports = [], []
    for path in modules:
        fused_path, report = fuse(path, *(["--picture", picture] if path == modules[0] else []))
        fused.append(fused_path)
        reports.append(report)
    if not reports[0]["fusions"]:
        sys.exit("nothing was fused")

    heading("2. Verified by Heddle's own interpreter")
    small = OUTPUT / f"gpt_{variant}_small.hlo"
    small.write_text(hlo_text(model.Config(dtype=options.dtype, checkpoint=options.checkpoint, **SMALL)), encoding="utf-8")
    with Step(f"the same model at S = {SMALL['sequence']}, random inputs, every output against f64"):
        _, report = fuse(small, "--verify")
    verify = report["verify"]
    print(f"  {verify['outputs']} outputs; largest relative error of the fused program {verify['max_relative_error']:.2e}, "
          f"each at most twice the original's own")

    heading("3. Run by XLA on this CPU")
    names = output_names(first)
    table, checks = [], []
    for config, original_path, fused_path in zip(configs, modules, fused):
        rows, errors = compare(config, names, original_path, fused_path, options.runs)
        table += rows
        checks.append(errors)
    print(f"\n  {'S':>6}  {'module':<10}{'loss':>12}{'time':>12}{'speed-up':>10}{'temporary memory':>19}")
    for before, row in zip([None, *table], table):
        again = row["module"] == "fused"
        faster = f"{before['seconds'] / row['seconds']:.2f}x" if again else ""
        smaller = f"{before['temporary_bytes'] / row['temporary_bytes']:.1f}x less" if again else ""
        print(f"  {row['sequence']:>6}  {row['module']:<10}{row['loss']:>12.6f}{row['seconds'] * 1e3:>9.0f} ms{faster:>10}"
              f"{row['temporary_bytes'] / 2**20:>15.1f} MiB  {smaller}".rstrip())

    print("\n  Relative error of each output against the f64 run of the original; the fused program's may be at most\n"
          f"  twice the original's, plus one rounding of {options.dtype}. The worst of each kind:")
    wrong = []
    for config, errors in zip(configs, checks):
        for kind in ("loss", "gradient", "updated"):
            of_kind = [error for error in errors if error["output"].startswith(kind)]
            worst = max(of_kind, key=lambda error: error["fused"] / error["bound"])
            print(f"  S = {config.sequence:<6}{worst['output']:<34} original {worst['original']:.2e}  fused {worst['fused']:.2e}  "
                  f"allowed {worst['bound']:.2e}  {'ok' if worst['ok'] else 'WRONG'}")
            wrong += [error for error in of_kind if not error["ok"]]

    results = OUTPUT / f"results_{variant}.json"
    results.write_text(json.dumps({"runs": table, "errors": checks}, indent=1) + "\n", encoding="utf-8")
    heading("4. Left to look at")
    print(f"  {shown(picture):<44} a layer before and after\n"
          f"  {shown(fused[0]):<44} the fused module, HLO text\n"
          f"  {shown(modules[0].with_suffix('.report.json')):<44} the report\n"
          f"  {shown(results):<44} the figures above")
    if wrong:
        sys.exit(f"\n{len(wrong)} outputs are farther from f64 than allowed")


if __name__ == "__main__":
    main()
