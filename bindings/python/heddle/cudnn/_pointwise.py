"""Pointwise ops, inside score expressions and outside them."""

import inspect

from heddle import _checks
from heddle.cudnn._node import Pointwise, ScoreExpression
from heddle.cudnn._tensor import Tensor
from heddle.cudnn._types import as_data_type

# Method -> the text form's op, and the method's operands in the op's order.
_OPS = {
    "add": ("add", "a", "b"), "sub": ("sub", "a", "b"), "mul": ("mul", "a", "b"), "div": ("div", "a", "b"),
    "scale": ("mul", "input", "scale"), "bias": ("add", "input", "bias"),
    "max": ("max", "input0", "input1"), "min": ("min", "input0", "input1"),
    "pow": ("pow", "input0", "input1"), "mod": ("mod", "input0", "input1"),
    "identity": ("identity", "input"), "neg": ("neg", "input"), "abs": ("abs", "input"), "exp": ("exp", "input"),
    "log": ("log", "input"), "sqrt": ("sqrt", "input"), "rsqrt": ("rsqrt", "input"),
    "reciprocal": ("reciprocal", "input"), "tanh": ("tanh_fwd", "input"), "sigmoid": ("sigmoid_fwd", "input"),
    "erf": ("erf", "input"), "sin": ("sin", "input"), "cos": ("cos", "input"), "tan": ("tan", "input"),
    "floor": ("floor", "input"), "ceil": ("ceil", "input"),
    "cmp_eq": ("cmp_eq", "input", "comparison"), "cmp_neq": ("cmp_neq", "input", "comparison"),
    "cmp_lt": ("cmp_lt", "input", "comparison"), "cmp_le": ("cmp_le", "input", "comparison"),
    "cmp_gt": ("cmp_gt", "input", "comparison"), "cmp_ge": ("cmp_ge", "input", "comparison"),
    "logical_and": ("logical_and", "a", "b"), "logical_or": ("logical_or", "a", "b"),
    "logical_not": ("logical_not", "input"),
    "relu": ("relu_fwd", "input"), "relu_backward": ("relu_bwd", "loss", "input"),
    "leaky_relu": ("relu_fwd", "input"), "leaky_relu_backward": ("relu_bwd", "loss", "input"),
    "tanh_backward": ("tanh_bwd", "loss", "input"), "sigmoid_backward": ("sigmoid_bwd", "loss", "input"),
    "elu": ("elu_fwd", "input"), "elu_backward": ("elu_bwd", "loss", "input"),
    "gelu": ("gelu_fwd", "input"), "gelu_backward": ("gelu_bwd", "loss", "input"),
    "gelu_approx_tanh": ("gelu_approx_tanh_fwd", "input"),
    "gelu_approx_tanh_backward": ("gelu_approx_tanh_bwd", "loss", "input"),
    "softplus": ("softplus_fwd", "input"), "softplus_backward": ("softplus_bwd", "loss", "input"),
    "swish": ("swish_fwd", "input"), "swish_backward": ("swish_bwd", "loss", "input"),
}

# Method -> its numbers, each with the text form's name: None stands for what is not set.
_CLIPS = {"negative_slope": "relu_lower_clip_slope", "lower_clip": "relu_lower_clip", "upper_clip": "relu_upper_clip"}
_SLOPE, _BETA = {"negative_slope": "relu_lower_clip_slope"}, {"swish_beta": "swish_beta"}
_NUMBERS = {"relu": _CLIPS, "relu_backward": _CLIPS, "leaky_relu": _SLOPE, "leaky_relu_backward": _SLOPE,
            "swish": _BETA, "swish_backward": _BETA}


class PointwiseOps:
    """The methods; a class that has them says in `_pointwise` what becomes of an op."""

    def gen_index(self, input: Tensor, axis: int, compute_data_type: object = None, name: str = "") -> Tensor:
        """The index along `axis` of what has the input's dims; of scores 0 is batch, 1 head, 2 row, 3 column."""
        return self._op("gen_index", "gen_index", self._operands("gen_index", {"input": input}), compute_data_type, name,
                        _checks.whole("axis of gen_index", axis))

    def binary_select(self, input0: Tensor, input1: Tensor, mask: Tensor, compute_data_type: object = None,
                      name: str = "") -> Tensor:
        """`input0` where the mask is true, else `input1`."""
        operands = {"mask": mask, "input0": input0, "input1": input1}
        return self._op("binary_select", "binary_select", self._operands("binary_select", operands), compute_data_type, name)

    def add_square(self, a: Tensor, b: Tensor, compute_data_type: object = None, name: str = "") -> Tensor:
        """a + b b, element by element."""
        a, b = self._operands("add_square", {"a": a, "b": b})
        square = self._op("add_square", "mul", (b, b), compute_data_type, "")
        return self._op("add_square", "add", (a, square), compute_data_type, name)

    def _operands(self, method, given):
        for operand, tensor in given.items():
            if tensor is None:
                raise TypeError(f"{operand} of {method} is None, expected a tensor of the graph.")
        return tuple(self._tensors.own(f"{operand} of {method}", tensor) for operand, tensor in given.items())

    def _op(self, method, mode, inputs, compute_data_type, name, axis=0, numbers=None):
        as_data_type(f"compute_data_type of {method}", compute_data_type)
        output = self._tensors.new(f"{_checks.text('name', name)}::OUT_0" if name else "", virtual=True)
        self._pointwise(Pointwise(mode, inputs, output, axis, name or "", numbers or {}))
        return output


def _method(method, mode, operands):
    some = inspect.Parameter.POSITIONAL_OR_KEYWORD
    fields = _NUMBERS.get(method, {})
    needed = inspect.Parameter.empty if method.startswith("leaky_relu") else None
    signature = inspect.Signature([
        inspect.Parameter("self", some), *(inspect.Parameter(operand, some) for operand in operands),
        *(inspect.Parameter(number, some, default=needed) for number in fields),
        inspect.Parameter("compute_data_type", some, default=None), inspect.Parameter("name", some, default="")])

    def op(self, *args, **kwargs):
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        tensors = self._operands(method, {operand: given.arguments[operand] for operand in operands})
        numbers = {field: _checks.number(f"{number} of {method}", given.arguments[number])
                   for number, field in fields.items() if given.arguments[number] is not None}
        return self._op(method, mode, tensors, given.arguments["compute_data_type"], given.arguments["name"],
                        numbers=numbers)

    op.__name__, op.__qualname__ = method, f"PointwiseOps.{method}"
    op.__doc__, op.__signature__ = f"{mode} of {' and '.join(operands)}, element by element.", signature
    return op


for _name, (_mode, *_inputs) in _OPS.items():
    setattr(PointwiseOps, _name, _method(_name, _mode, _inputs))


class ScoreGraph(PointwiseOps):
    """What a score_mod is given: pointwise ops on the score, and on tensors of the graph it belongs to."""

    def __init__(self, graph):
        self._graph, self._tensors, self.ops = graph, graph._tensors, []

    def tensor(self, *args, **kwargs) -> Tensor:
        """As the graph's own."""
        return self._graph.tensor(*args, **kwargs)

    def tensor_like(self, *args, **kwargs) -> Tensor:
        """As the graph's own."""
        return self._graph.tensor_like(*args, **kwargs)

    def _pointwise(self, op):
        if op.mode == "gen_index":
            op.inputs = ()  # all values of an expression have the dims of scores
        self.ops.append(op)


def score_expression(graph, what, function):
    """What the function of a graph and a score makes of it; None without a function."""
    if function is None:
        return None
    if not callable(function):
        raise TypeError(f"{what} is of type {type(function).__name__}, expected a function of a graph and a score.")
    inner, score = ScoreGraph(graph), graph._tensors.new(virtual=True)
    result = function(inner, score)
    if result is None:
        raise TypeError(f"{what} returned None, expected the tensor that scores become.")
    return ScoreExpression(score, graph._tensors.own(f"The result of {what}", result), inner.ops)
