"""Heddle in JAX: its custom call inside XLA, and HLO modules compiled and run by JAX's own XLA."""

from heddle.jax._versions import require_supported_jax

require_supported_jax()

from heddle.jax._rms_norm import rms_norm
from heddle.jax.ffi import register

__all__ = ["register", "rms_norm"]
