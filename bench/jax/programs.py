"""What is measured: programs that know nothing of Heddle, as people write them, and what is put beside them."""

import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import heddle.jax
import jax
import jax.numpy as jnp
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "examples" / "jax"))
import train_gpt  # noqa: E402


@dataclass(frozen=True)
class Attention:
    """Causal self-attention in bfloat16, [batch, sequence, heads, head_dim]."""

    batch: int
    sequence: int
    heads: int
    head_dim: int
    backward: bool

    @property
    def name(self):
        return (f"b{self.batch} s{self.sequence} h{self.heads} d{self.head_dim} causal, "
                f"{'forward+backward' if self.backward else 'forward'}")

    @property
    def flops(self):
        """Of the two products of the forward, half of them masked; the backward is 2.5 times that."""
        forward = 2 * self.batch * self.heads * self.sequence**2 * self.head_dim
        return forward * (3.5 if self.backward else 1)

    def as_json(self):
        return asdict(self)


def plain_attention(q, k, v):
    """Scores, mask, softmax, weighted sum."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)


def normal(*shape, seed, dtype=jnp.bfloat16):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)


def pulled_back(function):
    """function's result and gradients for a given gradient of the result."""

    def both(cotangent, *arguments):
        result, pull = jax.vjp(function, *arguments)
        return result, pull(cotangent)

    return both


def attention_programs(cell):
    """{name: (function, arguments)}; "plain" is the one that `enable()` is to change."""
    shape = cell.batch, cell.sequence, cell.heads, cell.head_dim
    q, k, v, d_o = (normal(*shape, seed=i) for i in range(4))
    functions = {"plain": plain_attention,
                 "cudnn": partial(jax.nn.dot_product_attention, is_causal=True, implementation="cudnn"),
                 "op": partial(heddle.jax.attention, causal=True)}
    if not cell.backward:
        return {name: (f, (q, k, v)) for name, f in functions.items()}
    return {name: (pulled_back(f), (d_o, q, k, v)) for name, f in functions.items()}


NORM_SHAPE = 16384, 4096


def plain_rms_norm(x, weight):
    """In f32, rounded once before the weight."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)).astype(x.dtype) * weight


def norm_programs(norms):
    """{pass: {name: function giving (function, arguments)}} of programs of so many norms, each of its own arrays; the
    backward alone is what a program runs after a forward.

    XLA's own recomputes 1/rms in it, which is less to read than what its forward could leave; Heddle's is given it.
    """
    arrays = lambda shape, seed: [normal(*shape, seed=seed + i) for i in range(norms)]
    x, g = arrays(NORM_SHAPE, 0), arrays(NORM_SHAPE, norms)
    weights = [1 + 0.1 * w for w in arrays(NORM_SHAPE[1:], 2 * norms)]
    each = lambda function: lambda *lists: [function(*one) for one in zip(*lists)]
    ours = heddle.jax.rms_norm
    alone = lambda g, x, weight: jax.vjp(plain_rms_norm, x, weight)[1](g)
    pulls = lambda: [jax.vjp(ours, *one)[1] for one in zip(x, weights)]
    return {
        "forward": {"xla": lambda: (each(plain_rms_norm), (x, weights)), "heddle": lambda: (each(ours), (x, weights))},
        "backward": {"xla": lambda: (each(alone), (g, x, weights)),
                     "heddle": lambda: (each(lambda pull, g: pull(g)), (pulls(), g))},
        "forward+backward": {"xla": lambda: (each(pulled_back(plain_rms_norm)), (g, x, weights)),
                             "heddle": lambda: (each(pulled_back(ours)), (g, x, weights))},
    }


@dataclass(frozen=True)
class Model:
    """A language model of examples/jax/train_gpt.py, trained byte by byte on Heddle's own sources, by Adam."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    kv_heads: int = 12
    batch: int = 4
    sequence: int = 2048
    rate: float = 3e-4
    dtype: str = "bfloat16"

    def as_json(self):
        return asdict(self)


def training(model, ops):
    """(step of (state, number), the first state) of the example's own training step."""
    sources = b"".join(path.read_bytes() for path in sorted((ROOT / "src").rglob("*.cpp")))
    text = np.frombuffer(sources, np.uint8).astype(np.int32)
    parameters = train_gpt.initial_parameters(jax.random.key(0), model)
    zeros = partial(jax.tree.map, jnp.zeros_like)
    step = partial(train_gpt.train_step, text=jnp.asarray(text), ops=ops, options=model)
    return lambda state, number: step(state, number), (parameters, zeros(parameters), zeros(parameters))


def device_programs():
    """{work: {name: (function, arguments)}}: forward and backward on one GPU, and on all of them at once.

    "batch" gives each GPU a batch of its own, so all of them should take as long as one; the ring cuts one sequence, so
    n of them should take an n-th.
    """
    gpus = jax.devices("cuda")
    mesh = jax.make_mesh((len(gpus),), ("gpus",), axis_types=(jax.sharding.AxisType.Auto,))

    def cut(shape, spec):
        place = jax.sharding.NamedSharding(mesh, spec)
        return [jax.device_put(normal(*shape, seed=i), place) for i in range(4)]

    one, rows = jax.sharding.PartitionSpec("gpus"), jax.sharding.PartitionSpec(None, "gpus")
    attend = partial(heddle.jax.attention, causal=True)
    ring = jax.shard_map(partial(heddle.jax.ring_attention, axis_name="gpus", causal=True), mesh=mesh,
                         in_specs=(rows,) * 3, out_specs=rows)
    alone = lambda shape: [normal(*shape, seed=i) for i in range(4)]
    batch, many, long = (2, 8192, 16, 128), (2 * len(gpus), 8192, 16, 128), (1, 32768, 16, 128)
    return {
        "batch": {"one": (pulled_back(attend), alone(batch)), "all": (pulled_back(attend), cut(many, one))},
        "ring": {"one": (pulled_back(attend), alone(long)), "all": (pulled_back(ring), cut(long, rows))},
    }


def training_ops():
    """The ops that the model is written with: plain JAX, which `enable()` is to change, and Heddle's own."""
    return {"plain": train_gpt.plain_ops(), "op": train_gpt.heddle_ops()}
