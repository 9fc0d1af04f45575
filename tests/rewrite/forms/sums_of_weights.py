"""Values that the weights of several softmaxes weigh together."""

import jax
import jax.numpy as jnp

from forms.dropout import dropped
from forms.form import B, D, H, K, KB, OB, Q, QB, V, VB, both, causal, form, shape, softmax

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


# Heads of one product, of which some weights are taken off others'.

V_OF_HALF, O_OF_HALF, SHARE = shape(B, K, H // 2, V), shape(B, Q, H // 2, V), shape(H // 2, 1, 1)


@both(QB, KB, V_OF_HALF, SHARE, out=O_OF_HALF)
def weights_of_half_the_heads_taken_off(q, k, v, share):
    p = weights(q, k, causal(offset=4))
    return weighed(p[:, :H // 2] - share * p[:, H // 2:], v)


@both(QB, KB, V_OF_HALF, SHARE, shape(H), out=O_OF_HALF)
def weights_of_every_other_head_taken_off(q, k, v, share, sinks):
    s = jnp.where(causal(offset=4), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    s = jnp.concatenate([s, jnp.broadcast_to(sinks[:, None, None], (B, H, Q, 1))], -1)
    p = softmax(s)[..., :-1]
    return weighed(p[:, ::2] - share * p[:, 1::2], v)


@both(QB, KB, V_OF_HALF, SHARE, shape(2, dtype=jnp.uint32), out=O_OF_HALF)
def weights_of_pairs_of_heads(q, k, v, share, key):
    """The pairs an axis of their own."""
    p = weights(q, k, causal(offset=4)).reshape(B, H // 2, 2, Q, K)
    p = p[:, :, 0] - share * p[:, :, 1]
    return weighed(dropped(p, jax.random.wrap_key_data(key), p.shape), v)


@both(QB, shape(B, K, D), shape(B, K, H // 3, V), out=shape(B, Q, H // 3, V))
def weights_of_thirds_of_heads_that_share_keys(q, k, v):
    p = softmax(jnp.einsum("bqhd,bkd->bhqk", q, k) * D**-0.5)
    one, two, three = jnp.split(p, 3, 1)
    return weighed(one - 0.3 * two + 0.1 * three, v)
