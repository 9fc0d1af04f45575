"""XLA in a quarter of the time, for programs that run once: compilation is nearly all of it, and of that LLVM's passes and the
emitters of fusions. What XLA makes of a program before those, which is what Heddle rewrites, is as people have it."""

import importlib.metadata
import os

# Without the passes that fuse it is quick too, and gives wrong results: JAX 0.11.
QUICKLY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_multi_thread_eigen=false"
# Those of before, while JAX has them, take a tenth.
OLDER_EMITTERS = "--xla_cpu_use_fusion_emitters=false"


def prepare():
    """Before JAX is imported. `XLA_FLAGS= pytest` has what people have: what is set already stays as it is."""
    version = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2]))
    flags = [QUICKLY, OLDER_EMITTERS] if (0, 8) <= version < (0, 11) else [QUICKLY]
    os.environ.setdefault("XLA_FLAGS", " ".join(flags))
