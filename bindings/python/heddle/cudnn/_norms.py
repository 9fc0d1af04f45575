"""rmsnorm, layernorm and their backwards."""

from heddle import _checks
from heddle.cudnn._node import Node
from heddle.cudnn._tensor import Tensor
from heddle.cudnn._types import as_data_type, data_type, member_of, norm_forward_phase


class Norms:
    """The normalised dims of X are those where the scale's dim is not 1; statistics have X's dims with 1 there."""

    def rmsnorm(self, norm_forward_phase: norm_forward_phase, input: Tensor, scale: Tensor | None = None,
                bias: Tensor | None = None, epsilon: Tensor | float | None = None, compute_data_type: object = None,
                name: str = "") -> tuple[Tensor, Tensor | None]:
        """Y = scale X / sqrt(mean(X^2) + epsilon) + bias, and in TRAINING the statistic 1 / sqrt(...), FLOAT."""
        name, made = self._norm("rmsnorm", name, compute_data_type, {"input": input, "epsilon": epsilon},
                                {"scale": scale, "bias": bias})
        training = _is_training("rmsnorm", norm_forward_phase)
        y = self._tensors.new(f"{name}::Y" if name else "", virtual=True)
        inv_variance = self._tensors.new(f"{name}::INV_VARIANCE" if name else "", virtual=True) if training else None
        self._add(Node("rms_norm", name, {"x": made["input"], "scale": made["scale"], "epsilon": made["epsilon"],
                                          "bias": made["bias"], "y": y, "inv_variance": inv_variance},
                       _without_scale("rmsnorm", name, scale)))
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

    def layernorm(self, norm_forward_phase: norm_forward_phase, input: Tensor, scale: Tensor | None = None,
                  bias: Tensor | None = None, epsilon: Tensor | float | None = None, zero_centered_gamma: bool = False,
                  compute_data_type: object = None, name: str = "") -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Y = scale (X - mean) / sqrt(variance + epsilon) + bias, and in TRAINING mean and 1 / sqrt(...), FLOAT.

        The variance is the mean of squares of what is left without the mean.
        """
        name, made = self._norm("layernorm", name, compute_data_type, {
            "input": input, "epsilon": epsilon}, {"scale": scale, "bias": bias})
        wanted = ("Y", "MEAN", "INV_VARIANCE") if _is_training("layernorm", norm_forward_phase) else ("Y",)
        results = [self._tensors.new(f"{name}::{port}" if name else "", virtual=True) for port in wanted]
        y, mean, inv_variance = *results, *[None] * (3 - len(results))
        declined = _without_scale("layernorm", name, scale)
        if _checks.flag("zero_centered_gamma", zero_centered_gamma):
            declined = f"zero_centered_gamma of layernorm '{name}' is True, expected False: give the scale with 1 added."
        self._add(Node("layer_norm", name, {
            "x": made["input"], "scale": made["scale"], "bias": made["bias"], "epsilon": made["epsilon"], "y": y,
            "mean": mean, "inv_variance": inv_variance}, declined))
        return y, mean, inv_variance

    def layernorm_backward(self, grad: Tensor, input: Tensor, scale: Tensor, mean: Tensor, inv_variance: Tensor,
                           compute_data_type: object = None, name: str = "") -> tuple[Tensor, Tensor, Tensor]:
        """The gradients (DX, Dscale, Dbias) for that of Y."""
        name, made = self._norm("layernorm_backward", name, compute_data_type, {
            "grad": grad, "input": input, "scale": scale, "mean": mean, "inv_variance": inv_variance})
        gradients = tuple(self._tensors.new(f"{name}::{port}" if name else "", virtual=True)
                          for port in ("DX", "Dscale", "Dbias"))
        self._add(Node("layer_norm_backward", name, {
            "dy": made["grad"], "x": made["input"], "scale": made["scale"], "mean": made["mean"],
            "inv_variance": made["inv_variance"], **dict(zip(("dx", "d_scale", "d_bias"), gradients, strict=True))}))
        return gradients

    def _norm(self, op, name, compute_data_type, given, optional=()):
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
        for port in optional:
            made[port] = self._tensors.own(f"{port} of {op}", optional[port])
        return name, made


def _without_scale(op, name, scale):
    """Why a norm without a scale is declined: its dims say what is normalised over."""
    if scale is not None:
        return None
    return f"scale of {op} '{name}' is None, expected a tensor, whose dims say what is normalised over: give one of ones."


def _is_training(op, phase):
    if member_of(norm_forward_phase, f"norm_forward_phase of {op}", phase) is norm_forward_phase.NOT_SET:
        raise ValueError(f"norm_forward_phase of {op} is NOT_SET, expected INFERENCE or TRAINING.")
    return phase is norm_forward_phase.TRAINING
