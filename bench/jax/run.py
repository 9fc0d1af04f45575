"""Heddle in JAX on one GPU, beside XLA alone and cuDNN, in one run: attention, RMSNorm, a GPT's training step.

    python bench/jax/run.py                             # everything; HEDDLE_LIBRARY names a build made elsewhere
    python bench/jax/run.py --only attention norm
    python bench/jax/run.py --report out/bench/jax.json # the tables and plots of an earlier run

Unmodified programs are compiled with `heddle.jax.enable()` off and on; both stay compiled and are run in turn.
Writes out/bench/jax.json, jax.md (tables), jax.svg (the plot) and jax_loss.svg (the loss curves).
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Memory that is taken in one piece does not fall apart: a plain program wants up to 40 GiB of it after others had theirs.
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bindings" / "python"))

import report  # noqa: E402

CELLS = [(2, 8192, 16, 128), (8, 2048, 16, 128), (2, 8192, 32, 64)]
LENGTHS = (1024, 2048, 4096, 8192)  # whose temporary memory is compared


def compiled(function, arguments, **options):
    import jax

    return jax.jit(function, **options).lower(*arguments).compile()


def fused_calls(program):
    return program.as_text().count('custom_call_target="heddle"')


def distance(found, expected):
    """The norm of the difference of two trees by that of the second, the largest of any leaf."""
    import jax
    import jax.numpy as jnp

    norm = lambda x: jnp.linalg.norm(x.astype(jnp.float32))
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(norm(a.astype(jnp.float32) - b.astype(jnp.float32)) / norm(b)) for a, b in pairs)


def attempt(results, name, make):
    """make() as results[name]; what it says if it fails is kept in its place, for the table."""
    try:
        results[name] = make()
    except Exception as error:  # a peer or an engine that refuses is a result too
        results[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"}
        print(f"  {name}: {results[name]['error']}", flush=True)


def measure(programs, rounds, works=1):
    """{name: figures} of {name: (compiled program, arguments)}, the first of which says what is right; each program does
    the work `works` times."""
    import clock

    results, calls, expected = {}, {}, None
    for name, (program, arguments) in programs.items():
        def once(program=program, arguments=arguments):
            nonlocal expected
            found = program(*arguments)
            expected = found if expected is None else expected
            return {"temporary_bytes": program.memory_analysis().temp_size_in_bytes,
                    "fused_calls": fused_calls(program), "distance": distance(found, expected)}

        attempt(results, name, once)
        if "error" not in results[name]:
            calls[name] = lambda program=program, arguments=arguments: program(*arguments)
    for name, seconds in clock.medians(calls, rounds).items():
        results[name]["seconds"] = seconds = seconds / works
        print(f"  {name:<10}{seconds * 1e3:9.4f} ms  {results[name]['temporary_bytes'] / 2**20:10.1f} MiB  "
              f"{results[name]['fused_calls']} fused calls, {results[name]['distance']:.1e} from the first", flush=True)
    return results


def off_and_on(functions, **options):
    """{name: (compiled program, arguments)} of {name: (function, arguments)}, "plain" also as "enabled"."""
    import heddle.jax

    programs, failed = {}, {}

    def put(name, function, arguments):
        attempt(failed, name, lambda: programs.update({name: (compiled(function, arguments, **options), arguments)}))

    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: put(name, *functions[name]), functions))
    programs = {name: programs[name] for name in functions if name in programs}
    with heddle.jax.enable():
        put("enabled", *functions["plain"])
    return programs, {name: result for name, result in failed.items() if result is not None}


def attention(options):
    from programs import Attention, attention_programs

    rows = []
    for shape in CELLS[:options.cells]:
        for backward in (False, True):
            cell = Attention(*shape, backward)
            print(cell.name, flush=True)
            programs, failed = off_and_on(attention_programs(cell))
            rows.append({"cell": cell.as_json(), "results": {**measure(programs, options.rounds), **failed}})
    return rows


def memory(_):
    """Temporary bytes by sequence length: b2 h16 d128, forward and backward, compiled and not run."""
    import heddle.jax
    import jax
    import jax.numpy as jnp
    from programs import plain_attention, pulled_back

    def size(length):
        arguments = [jax.ShapeDtypeStruct((2, length, 16, 128), jnp.bfloat16)] * 4
        return compiled(pulled_back(plain_attention), arguments).memory_analysis().temp_size_in_bytes

    with ThreadPoolExecutor() as pool:
        plain = list(pool.map(size, LENGTHS))
        with heddle.jax.enable():
            enabled = list(pool.map(size, LENGTHS))
    rows = [{"sequence": n, "plain": off, "enabled": on} for n, off, on in zip(LENGTHS, plain, enabled)]
    for row in rows:
        print(f"  s{row['sequence']}: {row['plain'] / 2**20:.0f} MiB, enabled {row['enabled'] / 2**20:.0f} MiB", flush=True)
    return rows


def norm(options):
    from programs import NORM_SHAPE, norm_programs

    rows = []
    for kind, makers in norm_programs(options.norms).items():
        print(f"rms_norm {NORM_SHAPE}, {kind}", flush=True)
        programs, failed = {}, {}
        for name, make in makers.items():
            def put():
                function, arguments = make()
                programs[name] = compiled(function, arguments), arguments

            attempt(failed, name, put)
        failed = {name: result for name, result in failed.items() if result is not None}
        rows.append({"pass": kind, "shape": NORM_SHAPE, "results": {**measure(programs, options.rounds, options.norms), **failed}})
    return rows


def training(options):
    import clock
    import jax
    from programs import Model, training, training_ops

    model = Model()
    print(f"training step: {model}, {options.steps} steps", flush=True)
    functions, first = {}, None
    for name, ops in training_ops().items():
        step, first = training(model, ops)
        functions[name] = step, (first, 0)
    programs, results = off_and_on(functions, donate_argnums=0)
    calls = {}
    for name, (program, _) in programs.items():
        state, losses = jax.tree.map(lambda x: x.copy(), first), []
        for number in range(options.steps):
            state, loss = program(state, number)
            losses.append(loss)
        stats = program.memory_analysis()
        results[name] = {"losses": [float(x) for x in losses], "fused_calls": fused_calls(program),
                         "temporary_bytes": stats.temp_size_in_bytes,
                         "peak_bytes": stats.temp_size_in_bytes + stats.argument_size_in_bytes}
        held = {"state": state}

        def call(program=program, held=held):
            held["state"], loss = program(held["state"], options.steps)
            return loss

        calls[name] = call
    for name, seconds in clock.medians(calls, 5).items():
        results[name]["seconds"] = seconds
        print(f"  {name:<10}{seconds * 1e3:9.2f} ms a step, {results[name]['peak_bytes'] / 2**30:.2f} GiB, "
              f"{results[name]['fused_calls']} fused calls, last loss {results[name]['losses'][-1]:.3f}", flush=True)
    return {"model": model.as_json(), "results": results}


def devices(options):
    import clock
    import jax
    from programs import device_programs

    count, rows = len(jax.devices("cuda")), []
    if count < 2:
        print("devices: there is one GPU, and nothing to compare")
        return None
    for work, functions in device_programs().items():
        programs = {name: (compiled(function, arguments), arguments) for name, (function, arguments) in functions.items()}
        seconds = clock.medians({name: lambda p=program, a=arguments: p(*a) for name, (program, arguments) in
                                 programs.items()}, options.rounds)
        print(f"{work}: one GPU {seconds['one'] * 1e3:.3f} ms, {count} GPUs {seconds['all'] * 1e3:.3f} ms", flush=True)
        rows.append({"work": work, "gpus": count, "seconds": seconds})
    return rows


PARTS = {"attention": attention, "memory": memory, "norm": norm, "training": training, "devices": devices}


def machine():
    """What is measured with; ends the program with a sentence where nothing can be."""
    try:
        import heddle
        import jax

        heddle.version()
        device = jax.devices("cuda")[0]
    except (ImportError, OSError, RuntimeError) as missing:
        sys.exit(f"run.py needs an NVIDIA GPU, a JAX for CUDA and libheddle.so: {missing}")
    return {"gpu": device.device_kind, "jax": jax.__version__, "heddle": heddle.version(),
            "platform": device.client.platform_version}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure")
    parser.add_argument("--cells", type=int, default=len(CELLS), help="how many of the attention shapes")
    parser.add_argument("--rounds", type=int, default=15, help="batches of calls that a median is taken of")
    # Launching a program takes a host about as long as one norm takes the GPU; of five kernels XLA makes a CUDA graph.
    parser.add_argument("--norms", type=int, default=8, help="norms in a program; the times are of one")
    parser.add_argument("--steps", type=int, default=150, help="training steps of the loss curves")
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "bench")
    parser.add_argument("--append", action="store_true", help="keep the other parts of an earlier run in the output folder")
    parser.add_argument("--report", type=Path, help="a jax.json to make the tables and plots of; nothing is measured")
    options = parser.parse_args()
    if options.report and not options.report.is_file():
        parser.error(f"--report: {options.report} is not there")
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.report or options.output / "jax.json"
    if not options.report:
        before = json.loads(path.read_text(encoding="utf-8")) if options.append and path.exists() else {}
        result = {**before, "machine": machine()}
        for name in options.only:
            start = time.perf_counter()
            result[name] = PARTS[name](options)
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    result = json.loads(path.read_text(encoding="utf-8"))
    text = report.tables(result)
    (options.output / "jax.md").write_text(text, encoding="utf-8")
    print(text)
    report.plots(result, options.output)


if __name__ == "__main__":
    main()
