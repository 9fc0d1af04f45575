"""Values that the weights of several softmaxes weigh together."""

import jax
import jax.numpy as jnp

from forms.dropout import dropped
from forms.form import B, D, H, K, KB, OB, Q, QB, VB, both, causal, form, shape, softmax

NUMBER = shape(H, 1, 1)


def weights(q, k, mask=True):
    return softmax(jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, -jnp.inf))


def weighed(p, v):
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@both(QB, KB, VB, QB, KB, NUMBER, out=OB)
def differential(q, k, v, q2, k2, share):
    mask = causal(offset=4)
    return weighed(weights(q, k, mask) - share * weights(q2, k2, mask), v)


@both(QB, KB, VB, QB, KB, NUMBER, shape(2, dtype=jnp.uint32), out=OB)
def differential_dropped(q, k, v, q2, k2, share, key):
    p = weights(q, k) - share * weights(q2, k2)
    return weighed(dropped(p, jax.random.wrap_key_data(key), p.shape), v)


@both(shape(B, Q, H, 2 * D), shape(B, K, H, 2 * D), VB, shape(4, D), out=OB)
def differential_of_halves(q, k, v, of_share):
    """The gradient of the share is read twice, once with a minus sign."""
    (q, q2), (k, k2) = (jnp.split(x, 2, -1) for x in (q, k))
    share = jnp.exp(jnp.sum(of_share[0] * of_share[1])) - jnp.exp(jnp.sum(of_share[2] * of_share[3])) + 0.2
    return weighed(weights(q, k) - share * weights(q2, k2), v)


@both(QB, KB, VB, KB, shape(B, H, Q, 1), out=OB)
def shares_of_three(q, k, v, k2, gate):
    """One of the three with its share of a number, two with what the data say."""
    gate = jax.nn.sigmoid(gate)
    near = jnp.abs(jnp.arange(K) - jnp.arange(Q)[:, None]) < 3
    return weighed((gate * weights(q, k) + (1 - gate) * weights(q, k2)) - 0.3 * weights(q, k, near), v)


@both(*(shape(*x.shape, dtype=jnp.bfloat16) for x in (QB, KB, VB, QB, KB)), out=shape(*OB.shape, dtype=jnp.bfloat16))
def differential_in_bf16(q, k, v, q2, k2):
    return weighed(weights(q, k) - jnp.bfloat16(0.75) * weights(q2, k2), v)


@form(*(shape(*x.shape, dtype=jnp.bfloat16) for x in (QB, KB, VB, QB, KB)))
def differential_rounded_after(q, k, v, q2, k2):
    """What is left of nearly equal weights has all digits of the narrow type."""
    p, p2 = (weights(x.astype(jnp.float32), y.astype(jnp.float32)) for x, y in ((q, k), (q2, k2)))
    return weighed((p - p2).astype(jnp.bfloat16), v)


@form(QB, KB, VB, QB, KB)
def differential_returned(q, k, v, q2, k2):
    p = weights(q, k) - 0.5 * weights(q2, k2)
    return weighed(p, v), p
