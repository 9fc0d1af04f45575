"""A process that judges one program after the other: each job is a line of JSON on stdin, each Outcome one on stdout."""

import json
import os
import sys
import zlib
from pathlib import Path

HERE = Path(__file__).parent


def prepare():
    """Before JAX is imported: one device, quick compilation, and where to find the package. HEDDLE_TEST_DEVICE: cpu, or cuda."""
    device = os.environ.get("HEDDLE_TEST_DEVICE", "cpu")
    os.environ["JAX_PLATFORMS"] = device
    sys.path[:0] = [str(HERE.parents[1] / "bindings" / "python"), str(HERE), str(HERE.parent / "support")]
    if device == "cpu":
        import quick_xla

        quick_xla.prepare()
    else:
        # Products of f32 in f32, not in tf32; and memory for the other processes.
        os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"


def judged(job):
    """The Outcome of a job, as a dict: {"seed": ..., "fixed": {...}}, {"trap": name}, {"file": path} or
    {"model": [library, name]}. With "original", how the process ended that tried it, the original is run alone."""
    import numpy as np
    from program import generate
    from text import Written
    from traps import TRAPS
    from trial import Outcome, ended, tried

    made, source = {}, ""
    try:
        if "trap" in job:
            program, inputs = TRAPS[job["trap"]]
            arguments = inputs(np.random.default_rng(zlib.crc32(job["trap"].encode())))
        elif "model" in job:
            sys.path.append(str(HERE.parent / "models"))
            from definition import made_flat

            program, arguments = made_flat(*job["model"])
        else:
            seed = job.get("seed", 0)
            if "file" in job:
                source = Path(job["file"]).read_text(encoding="utf-8")
                first = next((x for x in source.splitlines() if x.startswith("# seed ")), "").split(":")[0].split()
                seed = int(first[-1]) if first[:2] == ["#", "seed"] else 0
            else:
                source, choices = generate(seed, job.get("fixed"))
                made = choices.made
            written = Written(source, seed)
            program, arguments = written.program, written.arguments
    except Exception as error:
        return Outcome("no program", complaints=[f"{type(error).__name__}: {error}"[:2000]]).as_dict() | \
            {"job": job, "choices": made, "source": source}
    original_after = job.pop("original", None)
    outcome = ended(original_after, program, arguments) if original_after else tried(program, arguments, names_left="model" in job)
    return outcome.as_dict() | {"job": job, "choices": made, "source": source if outcome.failed() else ""}


def main():
    prepare()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a program or a compiler prints is no answer
    import jax

    for n, line in enumerate(sys.stdin):
        answers.write(json.dumps(judged(json.loads(line)), default=str) + "\n")
        answers.flush()
        if n % 25 == 24:
            jax.clear_caches()


if __name__ == "__main__":
    main()
