"""jax.nn.dot_product_attention, served by Heddle."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from heddle.jax import _checks
from heddle.jax._attention import attention

OP = "dot_product_attention"

# What JAX puts in place of a masked logit, and so the residual of a row without any key.
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: Literal["xla", "cudnn"] | None = None,
    return_residual: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """jax.nn.dot_product_attention with its signature and semantics, without the matrix of logits in memory.

    Args:
      query: `[B, T, N, H]` or `[T, N, H]`; float64 (on a CPU), float32, float16 or bfloat16.
      key, value: `[B, S, K, H]` or `[S, K, H]`, query's dtype; K divides N.
      bias: broadcasts to `[B, N, T, S]`; added to the logits.
      mask: bool, broadcasts to `[B, N, T, S]`; True keeps.
      scale: default 1/sqrt(H).
      is_causal: query i sees keys up to i.
      query_seq_lengths, key_value_seq_lengths: int32 `[B]`.
      local_window_size: query i sees keys i - left to i + right; an int is both.
      implementation: taken for the signature's sake; Heddle's is used whichever is named.
      return_residual: also return the log-sum-exp of the logits, `[B, T, N]` in query's dtype, without gradient.

    Returns:
      An array of query's shape and dtype. As in JAX, a row that the masks leave without a key is the mean of all values,
      and rows from query_seq_lengths on are 0. A bias of -inf is no mask: of a row where it hides all keys that the masks
      leave, the result is 0 or that mean, where JAX has NaN or the mean of the keys that the masks hide.

    Raises:
      TypeError, ValueError: as `attention` does; the arguments are called q, k, v, causal, q_lengths, kv_lengths and
        window there.
    """
    _checks.one_of(OP, "implementation", implementation, (None, "xla", "cudnn"))
    query, key, value = (_checks.as_array(OP, name, x) for name, x in (("query", query), ("key", key), ("value", value)))
    if value.shape != key.shape:
        raise ValueError(f"{OP}: value has shape {value.shape}, expected {key.shape} as key has.")
    is_causal = _checks.flag(OP, "is_causal", is_causal)
    return_residual = _checks.flag(OP, "return_residual", return_residual)
    o, lse = attention(query, key, value, bias=bias, mask=mask, causal=is_causal, window=local_window_size,
                       scale=scale, q_lengths=query_seq_lengths, kv_lengths=key_value_seq_lengths, return_lse=True)
    lse = jnp.swapaxes(jax.lax.stop_gradient(lse), -1, -2)  # [B, T, N]
    masks = (mask, query_seq_lengths, key_value_seq_lengths, local_window_size)
    if any(x is not None for x in masks) and value.size > 0:
        empty = lse == -jnp.inf
        if query_seq_lengths is not None:
            lengths = jnp.asarray(query_seq_lengths).reshape(query.shape[:-3] + (1, 1))
            empty &= jnp.arange(query.shape[-3])[:, None] < lengths
        mean = jnp.mean(value.astype(jnp.promote_types(value.dtype, jnp.float32)), -3, keepdims=True).astype(o.dtype)
        mean = jnp.repeat(mean, query.shape[-2] // key.shape[-2], -2)
        o = jnp.where(empty[..., None], mean, o)
    return (o, jnp.maximum(lse, MASKED).astype(o.dtype)) if return_residual else o
