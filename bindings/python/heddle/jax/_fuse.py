"""`fuse(f)`: any jittable function, its attention found and fused; `explain(f)`: what that finds.

The function becomes one JAX primitive. Where JAX lowers it, its program is made into an HLO module of its own,
rewritten by the library, and put back as a function of the program around it: so `fuse(f)` can be jitted, scanned,
vmapped, exported and compiled ahead of time like any other function.
"""

import functools
import os
import subprocess
from collections.abc import Callable
from typing import Any

import jax

from heddle import _library
from heddle.jax import _fused_derivative as _  # its rules
from heddle.jax import _internals
from heddle.jax._fused_program import bind
from heddle.jax.ffi import register


def fuse(f: Callable[..., Any], **jit_options: Any) -> jax.stages.Wrapped:
    """A jitted `f` whose attention, forward and backward, runs in fused calls.

    `f` is any function that `jax.jit` takes, and stays as it is; what the rewriter cannot prove to be attention is
    compiled as ever (`heddle.jax.explain` says what and why). `jit_options` are those of `jax.jit` (static_argnums,
    static_argnames, donate_argnums, ...). Compiled once for each set of shapes, like every jitted function.

    Gradients are best put inside: `fuse(jax.value_and_grad(loss))` or a whole training step. Around it they work too,
    and are fused: `jax.grad(fuse(f))` keeps f's arguments and runs its forward again beside its backward, as
    `jax.checkpoint` does. A program that XLA partitions over several devices raises NotImplementedError; inside of
    `jax.shard_map` with check_vma=False it works. A function with side effects (callbacks, debug prints) runs as
    written, with a warning.

    Works on the CPU and on NVIDIA GPUs. Where JAX can hand over whole programs (JAX >= 0.10.2 on CUDA),
    `heddle.jax.enable()` needs no change to the program at all.
    """
    if not callable(f):
        raise TypeError(f"fuse takes a function, and {type(f).__name__} cannot be called")
    register()

    @functools.wraps(f)
    def fused(*args, **kwargs):
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        # Inside jit the traced arguments are tracers; what else there is, is static.
        traced = [i for i, leaf in enumerate(leaves) if _internals.is_tracer(leaf)]
        name = getattr(f, "__name__", "program")
        outputs = []

        def flat(*values):
            filled = list(leaves)
            for i, value in zip(traced, values, strict=True):
                filled[i] = value
            filled_args, filled_kwargs = jax.tree_util.tree_unflatten(tree, filled)
            results, out_tree = jax.tree_util.tree_flatten(f(*filled_args, **filled_kwargs))
            outputs.append(out_tree)
            return results

        results = bind(flat, [leaves[i] for i in traced], name)
        return jax.tree_util.tree_unflatten(outputs[-1], results)

    fused.unfused = jax.jit(f, **jit_options)  # for `explain`
    return jax.jit(fused, **jit_options)


def explain(f: Callable[..., Any], *args: Any, picture: str | os.PathLike | None = None, **kwargs: Any) -> str:
    """What is fused of `f` for these arguments (arrays or ShapeDtypeStructs), what not, and why; as text.

    Asked of the engines of JAX's default device: what `fuse(f)` would do there, and `enable()` on one GPU.

    With `picture`, a path that ends in .svg, .png, .pdf or .dot, what changed in each computation is drawn there, before
    and after (all but .dot need Graphviz). `f` may be jitted, or what `fuse` gave. Raises RuntimeError if the program
    cannot be read.
    """
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    command = [str(_library.command_path()), "fuse", "-", "--device", device]
    if picture is not None:
        command += ["--picture", str(picture)]
    f = getattr(getattr(f, "__wrapped__", None), "unfused", f)  # of what `fuse` gave, the function it was given
    lowered = (f if hasattr(f, "lower") else jax.jit(f)).lower(*args, **kwargs)
    text = _internals.text_with_sources(lowered.compiler_ir("hlo"))
    run = subprocess.run(command, input=text, capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError(run.stderr.strip() or f"heddle fuse ended with status {run.returncode}")
    calls = text.count('custom_call_target="heddle"')
    if calls == 0:
        return run.stdout
    return f"{run.stdout}Calls of Heddle that are in the program already, by fuse or by an op of heddle.jax: {calls}.\n"
