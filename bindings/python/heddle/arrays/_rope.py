"""Rotary position embedding of arrays.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
"""

import math

from heddle.arrays import _calls, _new, _rope_graph
from heddle.arrays._calls import Inputs, Kind, Ready, kept
from heddle.arrays._rope_graph import OP


def rope(x: object, angles: object = None, *, positions: object = None, base: float = 10000.0, rope_dim: int | None = None,
         leading: bool = False, output_scale: float = 1.0, pairing: str = "halves", layout: str = "BTNH") -> object:
    """x with pairs of its last (or first) rope_dim columns rotated by angles that grow with the position.

    Args:
      x: `[B, T, N, H]` or `[T, N, H]` (layout "BNTH": heads before length); float64, float32, float16 or bfloat16, H even.
        Arrays are NumPy's, CuPy's, or of any library with DLPack on the host; of torch and JAX they are served by
        `heddle.torch` and `heddle.jax`, with gradients.
      angles: float32 `[P, rope_dim / 2]`, in radians: row p is for position p, P at least T (or above every position).
        Default: position * base^(-2 j / rope_dim).
      positions: int32 or int64 of `[T]` or `[B, T]`, the position of each row; default 0, 1, 2, ...
      base: of the default angles; at least 1e-18.
      rope_dim: even, at most H; default H. The other columns are only scaled.
      leading: the first rope_dim columns are rotated, as GPT-NeoX, GPT-J and Phi do, in place of the last.
      output_scale: multiplies the result.
      pairing: of the columns rotated, "halves" pairs column j with j + rope_dim / 2, "interleaved" 2 j with 2 j + 1.
      layout: "BTNH" or "BNTH".

    Returns:
      An array of x's shape and dtype, of x's library and on its device.

    Raises:
      TypeError: an argument is no array or has another dtype.
      ValueError: shapes or devices do not go together, a position has no row of angles, or a value is outside what is
        allowed.
    """
    options = {"base": base, "rope_dim": rope_dim, "leading": leading, "output_scale": output_scale, "pairing": pairing,
               "layout": layout}
    module = _calls.own_ops(_calls.library_of(x))
    if module:
        return module.rope(x, angles, positions=positions, **options)
    arrays = {"x": x} | {name: array for name, array in (("angles", angles), ("positions", positions)) if array is not None}
    call = _prepared(_calls.described(OP, arrays), **options)
    return call.run(arrays)


class _Call:
    """What calls with arrays of the same kinds and the same options share."""

    def __init__(self, given, options):
        self._inputs = Inputs(OP, given, {}, {})
        kinds = self._inputs.kinds
        self._config, self._base = _rope_graph.check(kinds, **options)
        self._results = {"y": Kind.dense(kinds["x"].dtype, kinds["x"].dims)}
        self._ready = self._own_freqs = None
        if 0 in kinds["x"].dims:
            return
        angles, positions = kinds.get("angles"), kinds.get("positions")
        rows = angles.dims[0] if angles else math.prod(positions.dims) if positions else self._config.length
        freqs = Kind.dense("f32", (rows, self._config.rope_dim))
        positions = positions and Kind.dense(positions.dtype if angles else "i64", positions.dims)
        graph = _rope_graph.graph(self._config, False, kinds["x"], freqs, positions)
        self._ready = Ready(graph, self._inputs.device, 4 if positions else 3)

    def run(self, arrays):
        if self._ready is None:
            return self._inputs.made(arrays["x"], self._results)[0]
        given = {name: _new.dense(f"{OP}: {name}", array) for name, array in arrays.items() if name != "x"}
        tables = self._tables(self._inputs.library, **given)
        operands = [self._inputs.copied(arrays)["x"], *(table for table in tables if table is not None)]
        return self._inputs.run(self._ready, operands, self._results)[0]

    def _tables(self, library, angles=None, positions=None):
        """Angles, each twice in a row, and the row of each position; None where row p is position p's."""
        if angles is not None:
            if positions is not None and not 0 <= int(positions.min()) <= int(positions.max()) < angles.shape[0]:
                raise ValueError(f"{OP}: positions are from {positions.min()} to {positions.max()}, expected each to have one of "
                                 f"the {angles.shape[0]} rows of angles.")
            return library.concatenate([angles, angles], -1), positions
        if positions is None:
            if self._own_freqs is None:
                self._own_freqs = self._freqs(library, library.arange(self._config.length))
            return self._own_freqs, None
        return self._freqs(library, positions.reshape(-1)), library.arange(positions.size).reshape(positions.shape)

    def _freqs(self, library, positions):
        exponents = -2 * library.arange(self._config.rope_dim // 2) / self._config.rope_dim
        angles = positions[:, None].astype("float32") * (self._base**exponents).astype("float32")
        return library.concatenate([angles, angles], -1)


@kept(128)  # each may keep its table
def _prepared(given, **options):
    return _Call(given, options)
