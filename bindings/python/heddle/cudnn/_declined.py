"""Ops of the frontend that Heddle's graphs do not have. The call makes its tensors; the graph is declined when it is checked,
as programs skip what is declined there."""

from heddle import _checks
from heddle.cudnn._node import Node

_MXFP8 = "MXFP8 operands take instructions of NVIDIA's Blackwell GPUs (SM100), which Heddle has no kernels for."
_OTHER = "Heddle's graphs hold attention, rope, norms and pointwise ops."

# Op -> its results by name, and why it is declined.
OPS = {
    "sdpa_mxfp8": (("O", "Stats", "Amax_O"), _MXFP8),
    "sdpa_mxfp8_backward": (("dQ", "dK", "dV", "Amax_dQ", "Amax_dK", "Amax_dV"), _MXFP8),
    "adalayernorm": (("Y", "mean", "inv_variance"), _OTHER),
    "adalayernorm_backward": (("DX", "Dscale", "Dbias"), _OTHER),
    "conv_fprop": (("Y",), _OTHER), "conv_dgrad": (("DX",), _OTHER), "conv_wgrad": (("DW",), _OTHER),
    "matmul": (("C",), _OTHER), "moe_grouped_matmul": (("OUT_0",), _OTHER),
    "moe_grouped_matmul_bwd": (("DWEIGHT",), _OTHER), "transpose": (("Y",), _OTHER), "reduction": (("Y",), _OTHER), "reshape": (("Y",), _OTHER), "slice": (("Y",), _OTHER),
    "concatenate": (("Y",), _OTHER), "genstats": (("SUM", "SQ_SUM"), _OTHER),
    "block_scale_quantize": (("Y", "scale"), _OTHER), "block_scale_dequantize": (("Y",), _OTHER),
}


class Declined:
    """The methods."""


def _method(op, results, why):
    def declined(self, *args, name="", **kwargs):
        name = _checks.text("name", name)
        outputs = tuple(self._tensors.new(f"{name}::{result}" if name else "", virtual=True) for result in results)
        self._add(Node(op, name, {}, f"The op {op} '{name}' is not supported. {why}"))
        unwanted = kwargs.get("generate_stats") is False or kwargs.get("is_inference") is True
        given = tuple(None if result == "Stats" and unwanted else output
                      for result, output in zip(results, outputs, strict=True))
        return given if len(given) > 1 else given[0]

    declined.__name__, declined.__qualname__ = op, f"Declined.{op}"
    declined.__doc__ = f"Declined when the graph is checked: {why}"
    return declined


for _op, (_results, _why) in OPS.items():
    setattr(Declined, _op, _method(_op, _results, _why))
