"""Heddle in JAX: the attention of unmodified programs fused (`enable`, `fuse`), and its ops to call."""

from heddle.jax._versions import require_supported_jax

require_supported_jax()

from heddle.jax._attention import attention
from heddle.jax._dot_product_attention import dot_product_attention
from heddle.jax._ring_attention import ring_attention, ring_order, ring_restore
from heddle.jax._fuse import explain, fuse
from heddle.jax._layer_norm import layer_norm
from heddle.jax._live import disable, enable
from heddle.jax._rms_norm import rms_norm
from heddle.jax._rope import rope
from heddle.jax.ffi import register

__all__ = [
    "attention", "disable", "dot_product_attention", "enable", "explain", "fuse", "layer_norm", "register",
    "ring_attention", "ring_order", "ring_restore", "rms_norm", "rope",
]
