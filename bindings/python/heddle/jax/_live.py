"""`enable()`: unmodified programs, their attention fused as XLA compiles them.

JAX hands every program over as a serialized HLO module, after partitioning, and takes an edited one back
(`jax.extend.xla.register_hlo_module_transformation`, JAX >= 0.10.2, on CUDA before layouts are assigned).
"""

import threading

import jax

from heddle import _library
from heddle._enabled import Enabled
from heddle._module import fuse_module
from heddle.jax import _internals
from heddle.jax._faults import logger, tell
from heddle.jax.ffi import register

NAME = "heddle"
PLATFORM = "cuda"  # the plug-in's name; JAX registers with no other


def transform(serialized, device):
    """What XLA is given back for a serialized HLO module: edited bytes, or None for "unchanged".

    Never raises: what cannot be read or rewritten is compiled as it is, and the reason is logged, once.
    """
    try:
        fused, report = fuse_module(serialized, device)
    except Exception as error:  # an exception would fail the user's compilation
        tell("A program", error)
        return None
    if "failure" in report:
        tell(report["module"], report["failure"])
    if fused is not None:
        logger.info("%s: %d fused calls, %d left alone", report["module"], len(report["fusions"]),
                    len(report["refusals"]))
    return fused


_lock = threading.Lock()
_salt = None  # while enabled


def _hook():
    """JAX's registry, where it can be used; raises RuntimeError with the way out where it cannot."""
    instead = "heddle.jax.fuse(f) does the same for any jittable function."
    registry = _internals.hlo_transformations()
    if registry is None:
        raise RuntimeError(f"heddle.jax.enable needs JAX 0.10.2 or later, and this is {jax.__version__}; {instead}")
    try:
        jax.devices("cuda")
    except RuntimeError:
        raise RuntimeError("heddle.jax.enable works on NVIDIA GPUs, where XLA hands over programs before it fuses them "
                           f"itself, and JAX finds no such GPU here; {instead}") from None
    return registry


def enable() -> Enabled:
    """From here on, the attention of every program that JAX compiles for an NVIDIA GPU runs in fused calls.

    Functions that were compiled before are compiled again at their next call (`jax.clear_caches`). JAX's persistent
    compilation cache keeps programs with and without Heddle, and with different builds of it, apart. Enabling twice is
    enabling once. Raises RuntimeError where JAX has no such hook: on the CPU, and before JAX 0.10.2; use
    `heddle.jax.fuse` there.

    Use it as a statement, undone by `disable()`, or as a context: `with heddle.jax.enable(): ...`.
    """
    global _salt
    registry = _hook()
    register()
    with _lock:
        if _salt is None:
            registry.register_hlo_module_transformation(_transform_if_enabled, name=NAME, platforms=PLATFORM)
            _salt = _internals.CacheKeySalt(f" heddle {_library.identity()}")
            jax.clear_caches()
    return Enabled(disable)


def disable() -> None:
    """Undoes `enable()`; programs are compiled as written from here on. Does nothing if it is not enabled."""
    global _salt
    with _lock:
        if _salt is None:
            return
        _internals.hlo_transformations().clear_hlo_module_transformation(NAME, platforms=PLATFORM)
        _salt.clear()
        _salt = None
        jax.clear_caches()


def _transform_if_enabled(serialized):
    # JAX registers anew with every backend that starts later, disabled or not.
    return transform(serialized, "cuda") if _salt is not None else None
