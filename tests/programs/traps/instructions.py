"""Instructions as such: nearly equal ones, legal ones that are seldom seen, very many of them, merged ones, calls."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from traps.trap import B, D, H, K, Q, V, heads, normal, scores, trap, weighed

# Instructions that are nearly equal.

def beside_attention(*arrays):
    def inputs(random):
        return [*heads(random), *(a(random) for a in arrays)]

    return trap(inputs)


@beside_attention(lambda r: (normal(r, 12) + 1j * normal(r, 12)).astype(np.complex64))
def transforms_there_and_back(q, k, v, x):
    return weighed(scores(q, k), v), jnp.abs(jnp.fft.fft(x)), jnp.abs(jnp.fft.ifft(x))


@beside_attention(lambda r: normal(r, 4, 11))
def sorted_up_and_down(q, k, v, x):
    up, down = (lax.sort(sign * x) for sign in (1, -1))
    falling = jnp.sort(x, descending=True)
    return weighed(scores(q, k), v), up, down, falling, jnp.sort(x)


@beside_attention(lambda r: (lambda x: (x @ x.T + 9 * np.eye(5)).astype("f"))(normal(r, 5, 5)))
def factors_and_solutions(q, k, v, x):
    lower = jnp.linalg.cholesky(x)
    solve = lambda **options: lax.linalg.triangular_solve(lower, x, left_side=True, lower=True, **options)
    return weighed(scores(q, k), v), lower, solve(), solve(transpose_a=True), solve(unit_diagonal=True)


@beside_attention(lambda r: normal(r, 4, 11))
def reducers_that_differ_in_a_direction(q, k, v, x):
    index = jnp.broadcast_to(jnp.arange(11), x.shape)
    reduced = lambda choose: lax.reduce((x, index), (np.float32(0), np.int32(0)),
                                        lambda a, b: tuple(jnp.where(choose(a[0], b[0]), *pair) for pair in zip(a, b)), (1,))
    return weighed(scores(q, k), v), reduced(lax.gt), reduced(lax.lt), reduced(lambda a, b: lax.gt(b, a))


# Legal HLO that the rewriter need not understand.

@trap(lambda r: [*heads(r), r.integers(-9, 9, (3, 4)).astype(np.int8), r.integers(-9, 9, (4, 5)).astype(np.int8)])
def product_of_bytes_beside(q, k, v, a, b):
    return weighed(scores(q, k), v), lax.dot(a, b, preferred_element_type=jnp.float32)


@trap(lambda r: [*heads(r, q=K, v=D), normal(r, H, K, K).astype(jnp.bfloat16)], grad=(0, 1, 2))
def narrow_bias_widened_before_a_scan(x, k, v, bias):
    bias = bias.astype(jnp.float32)
    return lax.scan(lambda x, _: (weighed(scores(x, k) + bias, v), None), x, None, length=2)[0]


@trap(lambda r: [*(x.astype(jnp.bfloat16) for x in heads(r))], grad=(0, 1, 2))
def narrow_keys_widened_before_a_scan(q, k, v):
    k, v = k.astype(jnp.float32), v.astype(jnp.float32)
    return lax.scan(lambda o, x: (o + weighed(scores(x, k), v), None), jnp.zeros((B, Q, H, V)),
                    jnp.stack([q, q / 2]).astype(jnp.float32))[0]


# Work that doubles with each step.

@trap(lambda r: [*heads(r), r.random((24, Q, K)) < 0.05], grad=(0, 1, 2))
def two_dozen_masks(q, k, v, masks):
    mask = masks[0]
    for i in range(1, 24):
        mask = mask | masks[i]
    return weighed(jnp.where(mask, scores(q, k), -1e30), v)


@trap(heads, grad=(0, 1, 2))
def index_doubled_often(q, k, v):
    i, j = jnp.arange(Q)[:, None], jnp.arange(K)[None]
    for _ in range(26):
        i = i + i
    return weighed(jnp.where(i >= j, scores(q, k), -1e30), v)


@trap(lambda r: heads(r, b=1, q=3, k=4, h=1))
def thousands_of_steps_to_the_softmax(q, k, v):
    s = scores(q, k)
    for i in range(2000):
        s = jnp.sin(s) * 1.01 + (i % 7) * 0.01
    return weighed(s, v)


# Heddle's own ops inside, one array in several roles.


@trap(lambda r: [normal(r, B, Q, H, D)])
def own_attention_of_one_array(q):
    import heddle.jax

    return heddle.jax.attention(q, q, q)


@trap(lambda r: [normal(r, B, Q, H, D)])
def gradient_of_own_attention_of_one_array(q):
    import heddle.jax

    return jax.grad(lambda q: jnp.sum(jnp.sin(heddle.jax.attention(q, q, q))))(q)


# Products written as multiplications and sums.

@trap(lambda r: [normal(r, B, H, D), *heads(r)[1:], normal(r, B, K, H)], grad=(0, 1, 2, 3))
def one_row_times_a_gate_of_each_key(q, k, v, gates):
    p = jax.nn.softmax((q[:, None] * gates[..., None] * k).sum(-1), axis=1)
    return (p[..., None] * v).sum(1)


@trap(lambda r: [normal(r, B, H, D), *heads(r)[1:], normal(r, B, K, H)], grad=(0, 1, 2, 3))
def one_row_of_weights_times_a_gate(q, k, v, gates):
    p = jax.nn.softmax((q[:, None] * k).sum(-1), axis=1)
    return ((p * gates)[..., None] * v).sum(1)


@trap(lambda r: [normal(r, B, H, D), *heads(r)[1:]], grad=(0, 1, 2))
def one_row_summed_over_heads(q, k, v):
    p = jax.nn.softmax((q[:, None] * k).sum((-1, -2)), axis=1)
    return (p[..., None, None] * v).sum(1)


@trap(lambda r: [normal(r, B, H), *heads(r)[1:]], grad=(0, 1, 2))
def one_row_of_one_number(q, k, v):
    p = jax.nn.softmax((q[:, None, :, None] * k).sum(-1), axis=1)
    return (p[..., None] * v).sum(1)


@trap(lambda r: [normal(r, B, H, D), *heads(r)[1:]], grad=(0, 1, 2))
def one_row_whose_weights_are_squared(q, k, v):
    p = jax.nn.softmax((q[:, None] * k).sum(-1), axis=1)[..., None]
    return (p * (p * v)).sum(1)


@trap(lambda r: [normal(r, B, H, D), *heads(r)[1:]], grad=(0, 1, 2))
def one_row_of_values_not_all_summed(q, k, v):
    p = jax.nn.softmax((q[:, None] * k).sum(-1), axis=1)
    return (p[..., None] * v)[:, :-1].sum(1)


@trap(lambda r: [normal(r, B, K, H, D), *heads(r)[1:]], grad=(0, 1, 2))
def rows_on_the_diagonal_of_their_keys(q, k, v):
    p = jax.nn.softmax((q * k).sum(-1), axis=1)
    return (p[..., None] * v).sum(1)


@trap(lambda r: [normal(r, B, Q, 4, D), normal(r, B, K, 2, D), normal(r, B, K, 2, V)])
def keys_of_groups_summed_twice_and_returned(q, k, v):
    d_k, d_v = jax.grad(lambda k, v: jnp.sum(jnp.sin(weighed(scores(q, k), v))), (0, 1))(jnp.repeat(k, 2, 2), jnp.repeat(v, 2, 2))
    shared = d_k.reshape(B, K, 2, 2, D)
    return d_k, shared.sum(3), shared.sum((0, 1, 3)), d_v.sum((0, 1)), d_v.sum(0), d_v.sum((1, 2))


# Dots merged, and cut again.

def cut_again(q, other, k, v, at, step=1):
    s = jnp.einsum("bqhd,bkhd->bhqk", jnp.concatenate([q, other], 1), k)
    p = jnp.concatenate([jax.nn.softmax(s[:, :, i] / 3) for i in (slice(0, at, step), slice(at, None, step))], 2)
    o = jnp.einsum("bhqk,bkhd->bhqd", p, v)
    return o[:, :, :at], o[:, :, at:]


@trap(lambda r: [normal(r, B, 4, H, D), *heads(r)], grad=(0, 1, 2, 3))
def merged_dots(other, q, k, v):
    return cut_again(q, other, k, v, Q)


@trap(lambda r: [normal(r, B, 4, H, D), *heads(r)], grad=(0, 1, 2, 3))
def merged_dots_cut_elsewhere(other, q, k, v):
    return cut_again(q, other, k, v, Q - 2)


@trap(lambda r: [normal(r, B, 4, H, D), *heads(r)])
def merged_dots_cut_with_gaps(other, q, k, v):
    return cut_again(q, other, k, v, Q, step=2)


@trap(lambda r: [normal(r, B, Q, H, D), *heads(r)])
def merged_dots_of_whose_parts_one_is_used_twice(other, q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", jnp.concatenate([q, other], 1), k)
    first, second = (jax.nn.softmax(s[:, :, i:i + Q]) for i in (0, 0))
    o = jnp.einsum("bhqk,bkhd->bhqd", jnp.concatenate([first, first + second], 2), v)
    return o[:, :, :Q], o[:, :, Q:], s[:, :, Q:]
