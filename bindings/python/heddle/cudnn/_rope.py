"""rope and its backward."""

from heddle import _checks
from heddle.cudnn._node import Node
from heddle.cudnn._tensor import Tensor
from heddle.cudnn._types import as_data_type


class Rope:
    """Column j of the first half of the last rope_dim columns and column j of the second are turned by freqs[s, 0, 0, j]."""

    def rope(self, input: Tensor, freqs: Tensor, output_scale: float = 1.0, rope_dim: int = 0,
             compute_data_type: object = None, name: str = "") -> Tensor:
        """output_scale times the rotated X [B, H, S, D]; freqs are angles, FLOAT [S or more, 1, 1, rope_dim].

        rope_dim: how many of the last columns are rotated, 0 for all.
        """
        return self._rope("rope", "OUTPUT", {"input": input, "freqs": freqs}, output_scale, rope_dim, compute_data_type,
                          name)

    def rope_backward(self, dY: Tensor, freqs: Tensor, output_scale: float = 1.0, rope_dim: int = 0,
                      compute_data_type: object = None, name: str = "") -> Tensor:
        """dX for the gradient dY of rope's result; output_scale and rope_dim are rope's."""
        return self._rope("rope_backward", "DX", {"dY": dY, "freqs": freqs}, output_scale, rope_dim, compute_data_type, name)

    def _rope(self, op, result, given, output_scale, rope_dim, compute_data_type, name):
        name = _checks.text("name", name)
        as_data_type("compute_data_type", compute_data_type)
        for port, tensor in given.items():
            if tensor is None:
                raise TypeError(f"{port} of {op} is None, expected a tensor of the graph.")
        x, freqs = (self._tensors.own(f"{port} of {op}", tensor) for port, tensor in given.items())
        y = self._tensors.new(f"{name}::{result}" if name else "", virtual=True)
        self._add(Node(op, name, {"x": x, "freqs": freqs, "y": y,
                                  "output_scale": _checks.number("output_scale", output_scale),
                                  "rope_dim": _checks.whole("rope_dim", rope_dim)}))
        return y
