"""Heddle: finds attention in a program and runs it as one fused kernel, forward and backward.

`heddle.jax` is Heddle in JAX. This package itself needs nothing but Python and the library it carries.
"""

from heddle._graph import Expression, Graph, Tensor
from heddle._gqa import gqa
from heddle._library import Error, library_path, version
from heddle._plan import Plan

__all__ = ["Error", "Expression", "Graph", "Plan", "Tensor", "gqa", "library_path", "version"]
