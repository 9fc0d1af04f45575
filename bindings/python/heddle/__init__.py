"""Heddle: finds attention in a program and runs it as one fused kernel, forward and backward.

`heddle.jax` is Heddle in JAX, `heddle.torch` in torch; `heddle.attention`, `rope`, `rms_norm` and `layer_norm` take arrays
of any library. This package itself needs nothing but Python and the library it carries.
"""

from heddle._graph import Expression, Graph, Tensor
from heddle._gqa import gqa
from heddle._library import Error, library_path, version
from heddle._plan import Plan
from heddle.arrays._attention import attention
from heddle.arrays._norms import layer_norm, rms_norm
from heddle.arrays._rope import rope

__all__ = ["Error", "Expression", "Graph", "Plan", "Tensor", "attention", "gqa", "layer_norm", "library_path",
           "rms_norm", "rope", "version"]
