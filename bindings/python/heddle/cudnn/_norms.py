"""rmsnorm and its backward."""

from heddle.cudnn import _checks
from heddle.cudnn._node import Node
from heddle.cudnn._tensor import Tensor
from heddle.cudnn._types import as_data_type, data_type, member_of, norm_forward_phase


class Norms:
    """The normalised dims of X are those where the scale's dim is not 1; statistics have X's dims with 1 there."""

    def rmsnorm(self, norm_forward_phase: norm_forward_phase, input: Tensor, scale: Tensor,
                bias: Tensor | None = None, epsilon: Tensor | float | None = None, compute_data_type: object = None,
                name: str = "") -> tuple[Tensor, Tensor | None]:
        """Y = scale X / sqrt(mean(X^2) + epsilon) + bias, and in TRAINING the statistic 1 / sqrt(...), FLOAT."""
        name, made = self._norm("rmsnorm", name, compute_data_type, {"input": input, "scale": scale, "epsilon": epsilon})
        training = _is_training("rmsnorm", norm_forward_phase)
        y = self._tensors.new(f"{name}::Y" if name else "", virtual=True)
        inv_variance = self._tensors.new(f"{name}::INV_VARIANCE" if name else "", virtual=True) if training else None
        self._add(Node("rms_norm", name, {"x": made["input"], "scale": made["scale"], "epsilon": made["epsilon"],
                                          "bias": self._tensors.own("bias of rmsnorm", bias), "y": y,
                                          "inv_variance": inv_variance}))
        return y, inv_variance

    def rmsnorm_backward(self, grad: Tensor, input: Tensor, scale: Tensor, inv_variance: Tensor, has_dbias: bool,
                         compute_data_type: object = None, name: str = "") -> tuple[Tensor, Tensor, Tensor | None]:
        """The gradients (DX, Dscale, Dbias) for that of Y; Dbias is None unless `has_dbias`."""
        name, made = self._norm("rmsnorm_backward", name, compute_data_type, {
            "grad": grad, "input": input, "scale": scale, "inv_variance": inv_variance})
        if has_dbias is None:
            raise TypeError("has_dbias of rmsnorm_backward is None, expected a bool.")
        wanted = ("DX", "Dscale", "Dbias") if _checks.flag("has_dbias", has_dbias) else ("DX", "Dscale")
        gradients = [self._tensors.new(f"{name}::{port}" if name else "", virtual=True) for port in wanted]
        dx, d_scale, d_bias = *gradients, *[None] * (3 - len(gradients))
        self._add(Node("rms_norm_backward", name, {
            "dy": made["grad"], "x": made["input"], "scale": made["scale"], "inv_variance": made["inv_variance"],
            "dx": dx, "d_scale": d_scale, "d_bias": d_bias}))
        return dx, d_scale, d_bias

    def _norm(self, op, name, compute_data_type, given):
        name = _checks.text("name", name)
        as_data_type("compute_data_type", compute_data_type)
        made = {}
        for port, tensor in given.items():
            if tensor is None:
                raise TypeError(f"{port} of {op} is None, expected a tensor of the graph.")
            if port == "epsilon" and not isinstance(tensor, Tensor):
                value = _checks.number("epsilon", tensor)
                tensor = self._tensors.new(virtual=False).set_data_type(data_type.FLOAT)
                tensor._constant = value
            made[port] = self._tensors.own(f"{port} of {op}", tensor)
        return name, made


def _is_training(op, phase):
    if member_of(norm_forward_phase, f"norm_forward_phase of {op}", phase) is norm_forward_phase.NOT_SET:
        raise ValueError(f"norm_forward_phase of {op} is NOT_SET, expected INFERENCE or TRAINING.")
    return phase is norm_forward_phase.TRAINING
