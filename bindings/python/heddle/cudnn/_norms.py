"""rmsnorm, layernorm, instancenorm, batchnorm and their backwards."""

from collections.abc import Sequence

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

        The variance is the mean of squares of what is left without the mean. With `zero_centered_gamma` scale stands for
        scale + 1.
        """
        name, made = self._norm("layernorm", name, compute_data_type, {
            "input": input, "epsilon": epsilon}, {"scale": scale, "bias": bias})
        wanted = ("Y", "MEAN", "INV_VARIANCE") if _is_training("layernorm", norm_forward_phase) else ("Y",)
        results = [self._tensors.new(f"{name}::{port}" if name else "", virtual=True) for port in wanted]
        y, mean, inv_variance = *results, *[None] * (3 - len(results))
        if _checks.flag("zero_centered_gamma", zero_centered_gamma) and scale is not None:
            made["scale"] = self._op("layernorm", "add", (made["scale"], self._known(1)), None, "")
            made["scale"].set_data_type(data_type.FLOAT)
        self._add(Node("layer_norm", name, {
            "x": made["input"], "scale": made["scale"], "bias": made["bias"], "epsilon": made["epsilon"], "y": y,
            "mean": mean, "inv_variance": inv_variance}, _without_scale("layernorm", name, scale)))
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

    def instancenorm(self, norm_forward_phase: norm_forward_phase, input: Tensor, scale: Tensor, bias: Tensor | None = None,
                     epsilon: Tensor | float | None = None, compute_data_type: object = None,
                     name: str = "") -> tuple[Tensor, Tensor | None, Tensor | None]:
        """layernorm over the dims of an input [N, C, ...] behind the second: scale and bias [1, C, 1, ...], and in TRAINING
        mean and 1 / sqrt(variance + epsilon), FLOAT [N, C, 1, ...].
        """
        name, made = self._norm("instancenorm", name, compute_data_type,
                                {"input": input, "scale": scale, "epsilon": epsilon}, {"bias": bias})
        training = _is_training("instancenorm", norm_forward_phase)
        results = self._results(name, ("Y", "MEAN", "INV_VARIANCE") if training else ("Y",))
        y, mean, inv_variance = *results, *[None] * (3 - len(results))
        self._add(Node("instance_norm", name, {
            "x": made["input"], "scale": made["scale"], "bias": made["bias"], "epsilon": made["epsilon"], "y": y,
            "mean": mean, "inv_variance": inv_variance}))
        return y, mean, inv_variance

    def instancenorm_backward(self, grad: Tensor, input: Tensor, scale: Tensor, mean: Tensor, inv_variance: Tensor,
                              compute_data_type: object = None, name: str = "") -> tuple[Tensor, Tensor, Tensor]:
        """The gradients (DX, Dscale, Dbias) for that of Y."""
        return self._channels_backward("instance_norm_backward", "instancenorm_backward", name, compute_data_type, {
            "grad": grad, "input": input, "scale": scale, "mean": mean, "inv_variance": inv_variance})

    def batchnorm(self, input: Tensor, scale: Tensor, bias: Tensor, in_running_mean: Tensor | None = None,
                  in_running_var: Tensor | None = None, epsilon: Tensor | float | None = None,
                  momentum: Tensor | float | None = None, peer_stats: Sequence[Tensor] = (), compute_data_type: object = None,
                  name: str = "") -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """(Y, mean, 1 / sqrt(variance + epsilon), next running mean, next running variance), as in training: layernorm over
        all dims of an input [N, C, ...] but the second. Scale, bias and statistics are [1, C, 1, ...], the latter FLOAT.

        next = (1 - momentum) running + momentum times the mean, or the variance times n / (n - 1) of n elements a channel;
        without running statistics None. They may be bound to the running ones' arrays. `peer_stats` are declined.
        """
        running = {"in_running_mean": in_running_mean, "in_running_var": in_running_var}
        given = [port for port, tensor in running.items() if tensor is not None]
        if len(given) == 1 or bool(given) != (momentum is not None):
            said = ", ".join(given + ["momentum"] * (momentum is not None)) or "none"
            raise ValueError(f"Of in_running_mean, in_running_var and momentum of batchnorm {said} is given, expected all or none.")
        needed = {"input": input, "scale": scale, "epsilon": epsilon} | (running | {"momentum": momentum} if given else {})
        name, made = self._norm("batchnorm", name, compute_data_type, needed, {"bias": bias})
        results = self._results(name, ("Y", "MEAN", "INV_VARIANCE", *(
            ("NEXT_RUNNING_MEAN", "NEXT_RUNNING_VAR") if given else ())))
        y, mean, inv_variance, next_mean, next_var = *results, *[None] * (5 - len(results))
        self._add(Node("batch_norm", name, {
            "x": made["input"], "scale": made["scale"], "bias": made["bias"], "epsilon": made["epsilon"],
            "momentum": made.get("momentum"), "running_mean": made.get("in_running_mean"),
            "running_var": made.get("in_running_var"), "y": y, "mean": mean, "inv_variance": inv_variance,
            "next_mean": next_mean, "next_var": next_var}, _with_peers("batchnorm", name, peer_stats)))
        return y, mean, inv_variance, next_mean, next_var

    def batchnorm_inference(self, input: Tensor, mean: Tensor, inv_variance: Tensor, scale: Tensor, bias: Tensor,
                            compute_data_type: object = None, name: str = "") -> Tensor:
        """scale (X - mean) inv_variance + bias, of an input [N, C, ...] and the others [1, C, 1, ...], as pointwise ops."""
        given = {"input": input, "mean": mean, "inv_variance": inv_variance, "scale": scale, "bias": bias}
        name, made = self._norm("batchnorm_inference", name, compute_data_type, given)
        y = made["input"]
        for mode, other in (("sub", "mean"), ("mul", "inv_variance"), ("mul", "scale")):
            y = self._op("batchnorm_inference", mode, (y, made[other]), None, "").set_data_type(data_type.FLOAT)
        return self._op("batchnorm_inference", "add", (y, made["bias"]), None, name)

    def batchnorm_backward(self, grad: Tensor, input: Tensor, scale: Tensor, mean: Tensor, inv_variance: Tensor,
                           peer_stats: Sequence[Tensor] = (), compute_data_type: object = None,
                           name: str = "") -> tuple[Tensor, Tensor, Tensor]:
        """The gradients (DX, Dscale, Dbias) for that of batchnorm's Y. `peer_stats` are declined."""
        return self._channels_backward("batch_norm_backward", "batchnorm_backward", name, compute_data_type, {
            "grad": grad, "input": input, "scale": scale, "mean": mean, "inv_variance": inv_variance}, peer_stats)

    def _channels_backward(self, op, method, name, compute_data_type, given, peer_stats=()):
        name, made = self._norm(method, name, compute_data_type, given)
        gradients = self._results(name, ("DX", "Dscale", "Dbias"))
        self._add(Node(op, name, {
            "dy": made["grad"], "x": made["input"], "scale": made["scale"], "mean": made["mean"],
            "inv_variance": made["inv_variance"], **dict(zip(("dx", "d_scale", "d_bias"), gradients, strict=True))},
            _with_peers(method, name, peer_stats)))
        return gradients

    def _results(self, name, ports):
        return tuple(self._tensors.new(f"{name}::{port}" if name else "", virtual=True) for port in ports)

    def _known(self, value):
        tensor = self._tensors.new(virtual=False).set_data_type(data_type.FLOAT)
        tensor._constant = value
        return tensor

    def _norm(self, op, name, compute_data_type, given, optional=()):
        name = _checks.text("name", name)
        as_data_type("compute_data_type", compute_data_type)
        made = {}
        for port, tensor in given.items():
            if tensor is None:
                raise TypeError(f"{port} of {op} is None, expected a tensor of the graph.")
            if port in ("epsilon", "momentum") and not isinstance(tensor, Tensor):
                tensor = self._known(_checks.number(port, tensor))
            made[port] = self._tensors.own(f"{port} of {op}", tensor)
        for port in optional:
            made[port] = self._tensors.own(f"{port} of {op}", optional[port])
        return name, made


def _without_scale(op, name, scale):
    """Why a norm without a scale is declined: its dims say what is normalised over."""
    if scale is not None:
        return None
    return f"scale of {op} '{name}' is None, expected a tensor, whose dims say what is normalised over: give one of ones."


def _with_peers(op, name, peer_stats):
    """Why a norm over several GPUs' batches is declined."""
    if not peer_stats:
        return None
    return f"peer_stats of {op} '{name}' are given, expected none: statistics are those of one GPU's batch."


def _is_training(op, phase):
    if member_of(norm_forward_phase, f"norm_forward_phase of {op}", phase) is norm_forward_phase.NOT_SET:
        raise ValueError(f"norm_forward_phase of {op} is NOT_SET, expected INFERENCE or TRAINING.")
    return phase is norm_forward_phase.TRAINING
