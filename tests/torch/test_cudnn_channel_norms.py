"""heddle.cudnn's instancenorm and batchnorm with their backwards, beside torch's own in f64."""

import math

import pytest
import torch
from heddle import cudnn
from torch.nn.functional import batch_norm, instance_norm

DEVICE = torch.get_default_device().type
FLOAT = cudnn.data_type.FLOAT
EPSILON, MOMENTUM = 1e-3, 0.3
TYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(3, 5, 7, 4), (2, 40, 6, 3), (1, 1, 9, 2), (2, 3, 4), (2, 3, 2, 5, 3)]
LAYOUTS = ["channels last", "contiguous", "entries innermost"]
TRAINING = cudnn.norm_forward_phase.TRAINING


def laid_out(x, layout):
    """x with strides of another order, elements two apart."""
    if layout == "contiguous":
        return x.contiguous()
    order = [0, *range(2, x.dim()), 1] if layout == "channels last" else [*range(1, x.dim()), 0]
    apart = torch.zeros(*(x.shape[d] for d in order), 2, dtype=x.dtype)
    back = [order.index(d) for d in range(x.dim())]
    made = apart[..., 0].permute(back) if layout == "entries innermost" else apart[..., 0].contiguous().permute(back)
    return made.copy_(x)


class Program:
    """A graph, and what it is executed with."""

    def __init__(self):
        self.graph = cudnn.pygraph(intermediate_data_type=FLOAT, compute_data_type=FLOAT,
                                   handle=cudnn.create_handle(device=DEVICE))
        self.pack = {}

    def give(self, array):
        tensor = self.graph.tensor(dim=array.shape, stride=array.stride(), data_type=array.dtype)
        self.pack[tensor] = array
        return tensor

    def number(self, value, rank):
        array = torch.full([1] * rank, value, device="cpu")
        tensor = self.graph.tensor(dim=array.shape, stride=array.stride(), data_type=array.dtype, is_pass_by_value=True)
        self.pack[tensor] = array
        return tensor

    def take(self, tensor, array):
        tensor.set_output(True).set_data_type(array.dtype).set_dim(array.shape).set_stride(array.stride())
        self.pack[tensor] = array
        return array

    def run(self):
        self.graph.build([cudnn.heur_mode.A])
        self.graph.execute(self.pack, torch.empty(self.graph.get_workspace_size(), dtype=torch.uint8))


def near(got, want, dtype=torch.float32):
    """Within a rounding to the type, of numbers of the size of the largest."""
    ulp = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}[dtype]
    torch.testing.assert_close(got.double(), want.double(), rtol=ulp, atol=ulp * want.abs().max().item() + 1e-12)


def drawn(shape, dtype, layout, offset=2.0):
    generator = torch.Generator(DEVICE).manual_seed(math.prod(shape))
    channels = [1, shape[1]] + [1] * (len(shape) - 2)
    normal = lambda dims: torch.randn(dims, generator=generator)  # noqa: E731
    x = laid_out((normal(shape) * (1 + torch.arange(shape[1]).view(channels)) + offset).to(dtype), layout)
    return x, laid_out(normal(shape).to(dtype), layout), normal(channels), normal(channels)


def statistics(x, over):
    mean = x.mean(over, keepdim=True)
    return mean, ((x - mean).square().mean(over, keepdim=True) + EPSILON).rsqrt()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", ["instancenorm", "batchnorm"])
def test_beside_torch_in_f64(op, shape, dtype, layout):
    x, dy, scale, bias = drawn(shape, dtype, layout)
    of_batch = op == "batchnorm"
    over = [0, *range(2, len(shape))] if of_batch else list(range(2, len(shape)))
    leaves = [one.double().requires_grad_() for one in (x, scale, bias)]
    running = [torch.randn(shape[1]).view(scale.shape), torch.rand(shape[1]).view(scale.shape)]
    true_running = [one.double().flatten() for one in running]
    if of_batch:
        y = batch_norm(leaves[0], *true_running, leaves[1].flatten(), leaves[2].flatten(), True, MOMENTUM, EPSILON)
    else:
        y = instance_norm(leaves[0], weight=leaves[1].flatten(), bias=leaves[2].flatten(), eps=EPSILON)
    mean, inverse = statistics(leaves[0].detach(), over)
    true = torch.autograd.grad(y, leaves, dy.double())

    program = Program()
    given = {"input": program.give(x), "scale": program.give(scale), "bias": program.give(bias),
             "epsilon": program.number(EPSILON, len(shape))}
    if of_batch:
        before = [program.give(one) for one in running]
        results = program.graph.batchnorm(**given, in_running_mean=before[0], in_running_var=before[1],
                                          momentum=program.number(MOMENTUM, len(shape)))
        for next_one, array in zip(results[3:], running, strict=True):
            program.take(next_one, array)  # in place
    else:
        results = program.graph.instancenorm(TRAINING, **given)
    made = [program.take(results[0], torch.full_like(x, math.nan)), *(
        program.take(one, torch.full(mean.shape, math.nan)) for one in results[1:3])]
    program.run()
    near(made[0], y.detach(), dtype), near(made[1], mean), near(made[2], inverse)
    if of_batch:
        near(running[0], true_running[0].view(scale.shape)), near(running[1], true_running[1].view(scale.shape))

    program = Program()
    gradients = getattr(program.graph, op + "_backward")(
        grad=program.give(dy), input=program.give(x), scale=program.give(scale), mean=program.give(mean.float()),
        inv_variance=program.give(inverse.float()))
    found = [program.take(one, torch.full_like(like, math.nan)) for one, like in zip(gradients, (x, scale, bias), strict=True)]
    program.run()
    # A sum over few elements of numbers far from 0 has the error of its terms, which dy's size is that of.
    for one, other, kind in zip(found, true, (dtype, torch.float32, torch.float32), strict=True):
        near(one, other, kind) if other.abs().max() > 1e-6 else near(one + 1, other + 1, kind)


@pytest.mark.parametrize("op", ["instancenorm", "batchnorm"])
def test_numbers_far_from_0_keep_their_spread(op):
    x = torch.randn(2, 3, 200, 300) * 0.01 + 1000
    program = Program()
    given = {"input": program.give(x), "scale": program.give(torch.ones(1, 3, 1, 1)), "bias": None,
             "epsilon": program.number(0.0, 4)}
    results = program.graph.batchnorm(**given) if op == "batchnorm" else program.graph.instancenorm(TRAINING, **given)
    y = program.take(results[0], torch.full_like(x, math.nan))
    for one in results[1:3]:
        program.take(one, torch.empty([2 if op == "instancenorm" else 1, 3, 1, 1]))
    program.run()
    wide = x.double()
    over = (0, 2, 3) if op == "batchnorm" else (2, 3)
    mean = wide.mean(over, keepdim=True)
    torch.testing.assert_close(y.double(), (wide - mean) / (wide - mean).square().mean(over, keepdim=True).sqrt(),
                               rtol=2e-5, atol=2e-5)


def test_batchnorm_with_relu_and_where_it_is_more_than_0():
    x, _, scale, bias = drawn((4, 16, 9, 9), torch.float16, "channels last")
    program = Program()
    zeros = torch.zeros_like(x)
    before, *_ = program.graph.batchnorm(program.give(x), program.give(scale), program.give(bias),
                                         epsilon=program.number(EPSILON, 4))
    y = program.graph.relu(before)
    mask = program.graph.cmp_gt(y, program.give(zeros))
    y = program.take(y, torch.empty_like(x))
    mask = program.take(mask, torch.empty_like(x, dtype=torch.bool))
    program.run()
    near(y, torch.relu(batch_norm(x.double(), None, None, scale.double().flatten(), bias.double().flatten(), True, 0, EPSILON)),
         torch.float16)
    assert torch.equal(mask, y > 0)


@pytest.mark.parametrize("masked", [False, True], ids=["of relu", "of a mask"])
def test_batchnorm_backward_behind_another(masked):
    x, dy, scale, bias = drawn((4, 16, 9, 9), torch.float16, "channels last")
    mean, inverse = torch.randn(1, 16, 1, 1), torch.rand(1, 16, 1, 1) + 0.5
    program = Program()
    given = {"input": program.give(x), "scale": program.give(scale), "mean": program.give(mean),
             "inv_variance": program.give(inverse)}
    wide = [one.double() for one in (x, scale, mean, inverse)]
    if masked:
        seen = torch.rand(x.shape) > 0.5
        gradient = program.graph.scale(program.give(dy), program.give(seen))
    else:
        seen = (wide[0] - wide[2]) * wide[3] * wide[1] + bias.double() > 0
        gradient = program.graph.relu_backward(program.give(dy), program.graph.batchnorm_inference(**given, bias=program.give(bias)))
    gradient.set_data_type(cudnn.data_type.HALF)
    results = program.graph.batchnorm_backward(grad=gradient, **given)
    found = [program.take(one, torch.empty_like(like)) for one, like in zip(results, (x, scale, scale), strict=True)]
    program.run()
    g, x_hat, over = dy.double() * seen, (wide[0] - wide[2]) * wide[3], (0, 2, 3)
    along, sums = (g * x_hat).mean(over, keepdim=True), g.mean(over, keepdim=True)
    near(found[0], wide[3] * wide[1] * (g - sums - x_hat * along), torch.float16)
    near(found[1], (g * x_hat).sum(over, keepdim=True)), near(found[2], g.sum(over, keepdim=True))


def test_reruns_of_a_backward_are_equal_bit_by_bit():
    x, dy, scale, _ = drawn((6, 8, 50, 40), torch.bfloat16, "channels last")
    mean, inverse = statistics(x.double(), (2, 3))
    program = Program()
    results = program.graph.instancenorm_backward(program.give(dy), program.give(x), program.give(scale),
                                                  program.give(mean.float()), program.give(inverse.float()))
    found = [program.take(one, torch.empty_like(like)) for one, like in zip(results, (x, scale, scale), strict=True)]
    program.run()
    first = [one.clone() for one in found]
    program.run()
    assert all(torch.equal(one, other) for one, other in zip(first, found, strict=True))


def refused(make):
    program = Program()
    x = program.give(torch.zeros(2, 3, 4, 5))
    channels = lambda *dims: program.give(torch.zeros(dims))  # noqa: E731
    results = make(program.graph, x, channels, program.number(EPSILON, 4))
    for one in results:
        if one is not None:
            one.set_output(True).set_data_type(FLOAT)
    program.graph.build([cudnn.heur_mode.A])


@pytest.mark.parametrize("make, kind, sentence", [
    (lambda g, x, c, e: g.instancenorm(TRAINING, x, c(1, 4, 1, 1), None, e), ValueError, r"scale .*\[1, 4, 1, 1\].*\[1, 3, 1, 1\]"),
    (lambda g, x, c, e: g.batchnorm(x, c(1, 3, 4, 1), None, epsilon=e), ValueError, r"scale .*\[1, 3, 4, 1\].*\[1, 3, 1, 1\]"),
    (lambda g, x, c, e: g.batchnorm(x, c(1, 3, 1, 1), c(1, 1, 1, 3), epsilon=e), ValueError, r"bias .*\[1, 1, 1, 3\]"),
    (lambda g, x, c, e: g.batchnorm(x, c(1, 3, 1, 1), None, c(1, 3, 1, 1), epsilon=e), ValueError,
     "in_running_mean is given, expected all or none"),
    (lambda g, x, c, e: g.batchnorm(x, c(1, 3, 1, 1), None, c(3), c(1, 3, 1, 1), e, e), ValueError, "running_mean"),
    (lambda g, x, c, e: g.batchnorm(x, c(1, 3, 1, 1), None, epsilon=e, peer_stats=[x]), cudnn.cudnnGraphNotSupportedError,
     "peer_stats of batchnorm '' are given"),
    (lambda g, x, c, e: g.batchnorm_backward(x, x, c(1, 3, 1, 1), c(2, 3, 1, 1), c(1, 3, 1, 1)), ValueError, r"mean .*\[2, 3, 1, 1\]"),
    (lambda g, x, c, e: g.instancenorm_backward(x, x, c(1, 3, 1, 1), c(1, 3, 1, 1), c(2, 3, 1, 1)), ValueError,
     r"mean .*\[1, 3, 1, 1\].*\[2, 3, 1, 1\]"),
    (lambda g, x, c, e: g.instancenorm(TRAINING, x, None, None, e), TypeError, "scale of instancenorm is None"),
    (lambda g, x, c, e: g.instancenorm(cudnn.norm_forward_phase.NOT_SET, x, c(1, 3, 1, 1), None, e), ValueError, "NOT_SET"),
])
def test_wrong_arguments_are_refused_by_a_sentence(make, kind, sentence):
    with pytest.raises(kind, match=sentence):
        refused(make)
