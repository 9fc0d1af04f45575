"""Heddle in JAX: its custom call inside XLA, and HLO modules compiled and run by JAX's own XLA."""

from heddle.jax._versions import require_supported_jax

require_supported_jax()

from heddle.jax._attention import attention
from heddle.jax._dot_product_attention import dot_product_attention
from heddle.jax._ring_attention import ring_attention, ring_order, ring_restore
from heddle.jax._rms_norm import rms_norm
from heddle.jax._rope import rope
from heddle.jax.ffi import register

__all__ = ["attention", "dot_product_attention", "register", "ring_attention", "ring_order", "ring_restore", "rms_norm", "rope"]
