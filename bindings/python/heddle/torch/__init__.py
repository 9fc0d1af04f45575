"""Heddle in torch: its ops to call, and scaled_dot_product_attention of unmodified programs (`enable`)."""

from heddle.torch._versions import require_supported_torch

require_supported_torch()

from heddle.torch._attention import attention
from heddle.torch._live import disable, enable, explain
from heddle.torch._norms import layer_norm, rms_norm
from heddle.torch._rope import rope

__all__ = ["attention", "disable", "enable", "explain", "layer_norm", "rms_norm", "rope"]
