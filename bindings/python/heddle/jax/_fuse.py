"""`fuse(f)`: any jittable function, its attention found and fused; `explain(f)`: what that finds.

The function becomes one JAX primitive. Where JAX lowers it, its program is made into an HLO module of its own,
rewritten by the library, and put back as a function of the program around it: so `fuse(f)` can be jitted, scanned,
vmapped, exported and compiled ahead of time like any other function.
"""

import functools
import subprocess
import warnings

import jax
from jax.extend.core import Primitive

from heddle import _library
from heddle._module import fuse_module
from heddle.jax import _internals
from heddle.jax.ffi import register

DEVICES = {"cpu": "cpu", "cuda": "cuda"}  # JAX's names of platforms -> the library's of devices

fused_program = Primitive("heddle_fused_program")
fused_program.multiple_results = True


def fuse(f, **jit_options):
    """A jitted `f` whose attention, forward and backward, runs in fused calls.

    `f` is any function that `jax.jit` takes, and stays as it is; what the rewriter cannot prove to be attention is
    compiled as ever (`heddle.jax.explain` says what and why). `jit_options` are those of `jax.jit` (static_argnums,
    static_argnames, donate_argnums, ...). Compiled once for each set of shapes, like every jitted function.

    Put gradients inside: `fuse(jax.value_and_grad(loss))` or a whole training step. `jax.grad(fuse(f))` raises
    NotImplementedError, because the backward would be cut off from the forward it is fused with. So does a program
    that XLA partitions over several devices; inside of `jax.shard_map` with check_vma=False it works. A function with side effects
    (callbacks, debug prints) runs as written, with a warning.

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

    return jax.jit(fused, **jit_options)


def bind(flat, values, name):
    """The primitive over a function of a flat list of arrays to one."""
    if any(map(_internals.varies_over_mesh, values)):
        raise NotImplementedError(f"heddle.jax.fuse({name}) does not follow which mesh axes a value varies over: inside "
                                  "of jax.shard_map it needs jax.shard_map(..., check_vma=False).")
    closed = jax.make_jaxpr(flat)(*values)
    if closed.effects:
        warnings.warn(f"heddle.jax.fuse: {name} has side effects ({', '.join(sorted(map(str, closed.effects)))}), "
                      "which a fused program cannot carry; it runs as written.", stacklevel=4)
        return flat(*values)
    return fused_program.bind(*closed.consts, *values, program=Program(closed.jaxpr, len(closed.consts)), name=name)


class Program:
    """A jaxpr with its constants as leading arguments; equal to itself alone, as a parameter has to be."""

    def __init__(self, jaxpr, constants):
        self.jaxpr, self._constants = jaxpr, constants

    def __call__(self, *values):
        return jax.core.eval_jaxpr(self.jaxpr, values[:self._constants], *values[self._constants:])

    def __repr__(self):
        return f"<{len(self.jaxpr.eqns)} equations>"


@fused_program.def_impl
def _run(*values, program, name):
    return program(*values)


@fused_program.def_abstract_eval
def _shapes(*_, program, name):
    return [variable.aval for variable in program.jaxpr.outvars]


def _batch(values, dims, *, program, name):
    batched = jax.vmap(program, in_axes=tuple(dims), out_axes=0)
    results = bind(batched, values, name)
    return results, [0] * len(results)


def _differentiate(primals, tangents, *, program, name):
    raise NotImplementedError(
        f"heddle.jax.fuse({name}) cannot be differentiated: a backward is fused together with the forward it belongs "
        f"to, so put the gradient inside, heddle.jax.fuse(jax.grad({name})).")


def _lower(context, *operands, program, name):
    platforms = _internals.lowering_platforms(context)
    if len(platforms) != 1 or platforms[0] not in DEVICES:
        raise NotImplementedError(
            f"heddle.jax.fuse({name}) is compiled for one platform, cpu or cuda, and not for {', '.join(platforms)}.")
    devices = _internals.devices_partitioned_over(context)
    if devices > 1:
        raise NotImplementedError(
            f"heddle.jax.fuse({name}) works on the program of one device, and this one is to be partitioned over "
            f"{devices}: use it inside of jax.shard_map, or heddle.jax.attention.")
    serialized = _proto(program, context.avals_in, platforms[0])
    fused, _ = fuse_module(serialized, DEVICES[platforms[0]])
    if fused is None:
        return _internals.lowered_as_written(program, context, operands)
    if b"_python_cpu_callback" in serialized or b"_python_gpu_callback" in serialized:
        warnings.warn(f"heddle.jax.fuse: {name} calls back into Python, which a fused program cannot carry; it runs as "
                      "written.", stacklevel=2)
        return _internals.lowered_as_written(program, context, operands)
    # The version is in the name, so that a compilation cache never serves what another one fused.
    symbol = f"heddle_{_library.identity()}_{name}"
    return _internals.inlined(context, _internals.stablehlo_of_proto(fused), symbol, operands)


_internals.define(fused_program, lower=_lower, batch=_batch, jvp=_differentiate)


def _proto(function, avals, platform):
    """The serialized HLO of a function of flat arrays, as JAX hands it to XLA."""
    specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))
             for aval in avals]
    traced = jax.jit(lambda *values: function(*values), keep_unused=True).trace(*specs)
    computation = traced.lower(lowering_platforms=(platform,)).compiler_ir("hlo")
    return computation.as_serialized_hlo_module_proto()


def explain(f, *args, picture=None, **kwargs):
    """What `fuse(f)` would fuse for these arguments (arrays or ShapeDtypeStructs), what not, and why; as text.

    With `picture`, a path that ends in .svg, .png, .pdf or .dot, each changed computation is drawn there before and
    after (all but .dot need Graphviz). `f` may be jitted already. Raises RuntimeError if the program cannot be read.
    """
    command = [str(_library.command_path()), "fuse", "-"]
    if picture is not None:
        command += ["--picture", str(picture)]
    lowered = (f if hasattr(f, "lower") else jax.jit(f)).lower(*args, **kwargs)
    text = lowered.compiler_ir("hlo").as_hlo_text(print_large_constants=True)
    run = subprocess.run(command, input=text, capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError(run.stderr.strip() or f"heddle fuse ended with status {run.returncode}")
    return run.stdout
