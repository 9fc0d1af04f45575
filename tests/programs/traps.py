"""Programs whose fused form was wrong once, or easily is: one for each way, on inputs that show it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

TRAPS = {}  # name -> (function of fuse that gives the program, function of a generator that gives its arguments)


def trap(inputs, grad=None):
    """Adds NAME and, if `grad` numbers arguments, NAME_grad: the gradients for a cotangent drawn from the output's size."""

    def add(f):
        TRAPS[f.__name__] = (lambda fuse: fuse(f)), inputs
        if grad is not None:
            def pulled_back(*x):
                return jax.grad(lambda *moving: _weighed(f, x, moving), tuple(range(len(grad))))(*(x[i] for i in grad))

            def _weighed(f, x, moving):
                x = list(x)
                for i, value in zip(grad, moving, strict=True):
                    x[i] = value
                return sum(jnp.sum(o.astype(jnp.float32) * jnp.cos(jnp.arange(o.size, dtype=jnp.float32)).reshape(o.shape))
                           for o in jax.tree.leaves(f(*x)))

            TRAPS[f.__name__ + "_grad"] = (lambda fuse: fuse(pulled_back)), inputs
        return f

    return add


def normal(random, *shape, dtype=np.float32):
    return random.standard_normal(shape).astype(dtype)


B, H, Q, K, D, V = 2, 3, 7, 9, 8, 16


def heads(random, b=B, q=Q, k=K, h=H, d=D, v=V):
    return [normal(random, b, q, h, d), normal(random, b, k, h, d), normal(random, b, k, h, v)]


def scores(q, k):
    return jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1]**-0.5


def weighed(s, v):
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)


# Operands that vary along axes that their role does not have.

def rotated(x, positions):
    """x [b, s, h, d] by angles of positions [b, s]."""
    half = x.shape[-1] // 2
    angle = positions[..., None, None] / 100.0**(jnp.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)


def self_attention_and_positions(random):
    return [*heads(random, q=K), np.stack([np.arange(K), np.maximum(np.arange(K) - 4, 0)]).astype(np.int32)]


@trap(self_attention_and_positions, grad=(0, 1, 2))
def rope_positions_differ_in_the_batch(q, k, v, positions):
    return weighed(scores(rotated(q, positions), rotated(k, positions)), v)


@trap(lambda r: [*heads(r), normal(r, H, Q, D // 2), normal(r, H, K, D // 2)], grad=(0, 1, 2))
def rope_angles_differ_between_heads(q, k, v, of_rows, of_keys):
    def turned(x, angle):
        angle = angle.transpose(1, 0, 2)
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)

    return weighed(scores(turned(q, of_rows), turned(k, of_keys)), v)


def shared_over_heads(random):
    return [normal(random, B, Q, D), normal(random, B, K, D), normal(random, B, K, H, V)]


def for_all_heads(q, k):
    return [jnp.broadcast_to(x[:, :, None], (*x.shape[:2], H, x.shape[-1])) for x in (q, k)]


@trap(lambda r: [*shared_over_heads(r), normal(r, H, Q, K)], grad=(0, 1, 2, 3))
def shared_over_heads_bias_differs(q, k, v, bias):
    return weighed(scores(*for_all_heads(q, k)) + bias, v)


@trap(lambda r: [*shared_over_heads(r), normal(r, H)], grad=(0, 1, 2))
def shared_over_heads_slopes_differ(q, k, v, slopes):
    s = scores(*for_all_heads(q, k))
    return weighed(s + slopes[:, None, None] * (jnp.arange(K)[None, :] - jnp.arange(Q)[:, None]).astype(jnp.float32), v)


@trap(lambda r: [normal(r, Q, H, D), normal(r, K, H, D), normal(r, B, K, H, V), r.random((B, K)) < 0.6], grad=(0, 1, 2))
def shared_over_batch_padding_differs(q, k, v, mask):
    s = scores(*(jnp.broadcast_to(x, (B, *x.shape)) for x in (q, k)))
    return weighed(jnp.where(mask[:, None, None, :], s, -1e30), v)


@trap(lambda r: [*shared_over_heads(r), np.array([3, 5], np.uint32)], grad=(0, 1, 2))
def shared_over_heads_dropout_differs(q, k, v, key):
    p = jax.nn.softmax(scores(*for_all_heads(q, k)))
    keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.7, (B, H, Q, K))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(keep, p / 0.7, 0), v)


@trap(lambda r: [*shared_over_heads(r), r.random((B, H, Q, K)) < 0.7], grad=(0, 1, 2))
def shared_over_heads_kept_weights_differ(q, k, v, keep):
    p = jax.nn.softmax(scores(*for_all_heads(q, k)))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(keep, p / 0.7, 0), v)


@trap(lambda r: [normal(r, B, Q, 4, D), normal(r, B, K, 2, D), normal(r, B, K, 2, V), normal(r, 2, Q, K)], grad=(0, 1, 2, 3))
def bias_of_each_key_head(q, k, v, bias):
    s = jnp.einsum("bqgrd,bkgd->bgrqk", q.reshape(B, Q, 2, 2, D), k) + bias[:, None]
    return jnp.einsum("bgrqk,bkgd->bqgrd", jax.nn.softmax(s), v)


@trap(lambda r: [*heads(r, k=8), normal(r, H, Q, 2)], grad=(0, 1, 2, 3))
def bias_of_blocks_of_keys(q, k, v, bias):
    return weighed(scores(q, k) + jnp.repeat(bias, 4, -1), v)


# Huge finite additive terms; rows hidden whole.

def float_mask(random, q=Q, k=K):
    mask = (random.random((B, k)) < 0.6).astype(np.float32)
    mask[0] = 0
    return [*heads(random, q=q, k=k), mask]


@trap(float_mask, grad=(0, 1, 2))
def float_mask_times_a_huge_fill(q, k, v, mask):
    return weighed(scores(q, k) + (1 - mask)[:, None, None, :] * -1e9, v)


@trap(float_mask, grad=(0, 1, 2))
def lifted_by_a_huge_number(q, k, v, mask):
    return weighed(scores(q, k) + (1 - mask)[:, None, None, :] * 4e9, v)


@trap(lambda r: [*heads(r), np.array([[0] * K, [0] + [1] * (K - 1)], np.int32)], grad=(0, 1, 2))
def integer_mask_times_lowest(q, k, v, mask):
    hidden = (1 - mask)[:, None, None, :].astype(jnp.float32)
    return weighed(scores(q, k) + hidden * jnp.finfo(jnp.float32).min, v)


@trap(lambda r: [*heads(r), np.where(np.arange(K) < [[K], [3]], np.finfo("f").min, np.float32(0))], grad=(0, 1, 2))
def lowest_added_hides_an_entry(q, k, v, padding):
    return weighed(scores(q, k) + padding[:, None, None, :], v)


@trap(lambda r: [*heads(r, q=K), np.where(np.arange(K) < [[4], [0]], np.finfo("f").min, np.float32(0))], grad=(0, 1, 2))
def left_padding_under_a_causal_select(q, k, v, padding):
    s = scores(q, k) + padding[:, None, None, :]
    return weighed(jnp.where(jnp.tril(jnp.ones((K, K), bool)), s, jnp.finfo(jnp.float32).min), v)


@trap(lambda r: [*heads(r, q=K), np.where(np.arange(K) < [[4], [0]], -np.inf, np.float32(0)).astype("f")], grad=(0, 1, 2))
def infinite_padding_under_a_causal_select(q, k, v, padding):
    s = scores(q, k) + padding[:, None, None, :]
    return weighed(jnp.where(jnp.tril(jnp.ones((K, K), bool)), s, -1e30), v)


@trap(lambda r: [*heads(r), r.random((B, 1, Q, K)) < [[[[0.0]]], [[[0.6]]]], np.array([-np.inf, 0.5, -np.inf], np.float32)],
      grad=(0, 1, 2))
def sink_of_nothing_and_a_hidden_row(q, k, v, mask, sinks):
    s = jnp.where(mask, scores(q, k), -1e30)
    s = jnp.concatenate([s, jnp.broadcast_to(sinks[:, None, None], (B, H, Q, 1))], -1)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s)[..., :-1], v)


@trap(lambda r: [*heads(r), r.random((B, 1, Q, K)) < [[[[0.0]]], [[[0.6]]]]], grad=(0, 1, 2))
def scores_less_the_log_of_their_sum(q, k, v, mask):
    """Beside a huge finite number that log is lost: of a row hidden whole the weights are 1 each."""
    s = jnp.where(mask, scores(q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(s - jax.nn.logsumexp(s, -1, keepdims=True)), v)


@trap(lambda r: [x * np.float32(18) for x in heads(r)], grad=(0, 1, 2))
def large_logits(q, k, v):
    return weighed(jnp.einsum("bqhd,bkhd->bhqk", q, k), v)


# Integers are not real numbers.

def masked_by(f, q=Q, k=K, **sizes):
    """A trap whose mask [q, k] (or [b, 1, q, k]) is f of the row and the key."""

    def add(rows, keys):
        def program(query, key, v):
            return weighed(jnp.where(f(rows(), keys()), scores(query, key), -1e30), v)

        program.__name__ = f.__name__
        trap(lambda r: heads(r, q=q, k=k, **sizes), grad=(0, 1, 2))(program)

    return add


def window_by_one_comparison(i, j):
    return (i - j).astype(jnp.uint32) < 4


def window_by_unsigned_difference(i, j):
    return i - j < 4


def positions_times_four_wrap(i, j):
    return i * 4 >= j * 4


def causal_in_bf16(i, j):
    return i >= j


masked_by(window_by_one_comparison)(lambda: jnp.arange(Q)[:, None], lambda: jnp.arange(K)[None])
masked_by(window_by_unsigned_difference)(lambda: jnp.arange(Q, dtype=jnp.uint8)[:, None],
                                         lambda: jnp.arange(K, dtype=jnp.uint8)[None])
masked_by(positions_times_four_wrap, q=40, k=41, b=1, h=1)(
    lambda: jnp.arange(40, dtype=jnp.int8)[:, None], lambda: jnp.arange(41, dtype=jnp.int8)[None])
masked_by(causal_in_bf16, q=320, k=320, b=1, h=1)(
    lambda: jnp.arange(320, dtype=jnp.bfloat16)[:, None], lambda: jnp.arange(320, dtype=jnp.bfloat16)[None])


@trap(lambda r: [*heads(r), r.integers(0, 2, (B, K)).astype(np.int32)], grad=(0, 1, 2))
def unsigned_mask_less_one(q, k, v, mask):
    bias = (mask.astype(jnp.uint8) - 1).astype(jnp.float32) * 1e9
    return weighed(scores(q, k) + bias[:, None, None, :], v)


@trap(heads, grad=(0, 1, 2))
def half_a_mask_as_an_integer(q, k, v):
    hidden = (jnp.arange(K) > 4).astype(jnp.float32)
    return weighed(jnp.where((hidden * 0.5).astype(jnp.int32) > 0, -1e30, scores(q, k)), v)


@trap(lambda r: heads(r, q=K))
def truncated_numbers_on_the_way(q, k, v):
    far = (jnp.arange(K) * 0.3).astype(jnp.int32).astype(jnp.float32)
    return weighed(jnp.where(far[:, None] >= far[None], scores(q, k), -1e30), v)


@trap(heads, grad=(0, 1, 2))
def scores_rounded_to_eight_bits(q, k, v):
    s = scores(q, k)
    return weighed(s.astype(jnp.float8_e5m2).astype(jnp.float32), v)


@trap(lambda r: [*heads(r), r.random((B, 1, Q, K)) < 0.9])
def weights_divided_by_a_mask(q, k, v, mask):
    p = jax.nn.softmax(scores(q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", p / mask, v)


@trap(lambda r: [*heads(r), r.random((B, 1, Q, K)) < 0.8])
def weights_divided_by_a_mask_of_two_numbers(q, k, v, mask):
    p = jax.nn.softmax(scores(q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", p / (mask.astype(jnp.float32) + 1), v)


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


# Masks of literals; one row or one batch entry, so that what varies along it varies along nothing.

KEYS_SEEN = np.arange(K) % 2 == 0
ROWS_SEEN = np.abs(np.arange(Q) - Q // 2) > 1


@jax.jit  # what a function that is fused closes over is an operand of it, what one inside closes over a literal
def of_seen_keys(s):
    return jnp.where(KEYS_SEEN, s, -1e30)


@jax.jit
def of_seen_rows(s):
    return jnp.where(ROWS_SEEN[:, None], s, -1e30)


@trap(heads, grad=(0, 1, 2))
def literal_mask_of_keys(q, k, v):
    return weighed(of_seen_keys(scores(q, k)), v)


@trap(heads, grad=(0, 1, 2))
def literal_mask_of_rows(q, k, v):
    return weighed(of_seen_rows(scores(q, k)), v)


@trap(lambda r: [*heads(r), normal(r, K)], grad=(0, 1, 2))
def literal_mask_of_keys_and_bias(q, k, v, bias):
    return weighed(of_seen_keys(scores(q, k) + bias), v)


@trap(lambda r: heads(r, q=1), grad=(0, 1, 2))
def causal_of_one_row(q, k, v):
    i, j = jnp.cumsum(jnp.ones(1, jnp.int32)), jnp.cumsum(jnp.ones(K, jnp.int32))
    return weighed(jnp.where(i[:, None] >= j, scores(q, k), -jnp.inf), v)


@trap(lambda r: [*heads(r, b=1, h=1), r.random((1, K)) < 0.5, np.full(1, -1e30, np.float32)], grad=(0, 1, 2))
def padding_bias_of_one_entry(q, k, v, mask, bias):
    s = jnp.where(mask[:, None, None, :], scores(q, k), -1e30)
    return weighed(s + bias[:, None, None, None], v)


@trap(heads, grad=(0, 1, 2))
def rows_lifted(q, k, v):
    return weighed(scores(q, k) + (jnp.arange(Q) != 2)[:, None] * 1e9, v)


@trap(heads, grad=(0, 1, 2))
def scores_lifted(q, k, v):
    return weighed(scores(q, k) + 1e9, v)


@trap(lambda r: [*heads(r), r.random((B, K)) < 0.6, r.integers(0, 2, (B, K))], grad=(0, 1, 2))
def fills_of_two_sizes_added(q, k, v, padding, segments):
    s = scores(q, k) + jnp.where(padding[:, None, None, :], 0.0, -2.38e38)
    return weighed(s + (segments[:, None, None, :].astype(bool).astype(jnp.int32) - 1).astype(s.dtype) * 1e9, v)


@trap(lambda r: [*heads(r), r.random((B, K)) < 0.6], grad=(0, 1, 2))
def fixed_shift_beside_a_fill(q, k, v, mask):
    e = jnp.exp(jnp.where(mask[:, None, None, :], scores(q, k), -1e30) - 1.5)
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


@trap(lambda r: [*heads(r), np.array([[True] * 4 + [False] * 3] * B)])
def sink_as_low_as_the_fill(q, k, v, rows):
    s = jnp.where(rows[:, None, :, None], scores(q, k), -1e30)
    s = jnp.concatenate([s, jnp.full((B, H, Q, 1), -1e30)], -1)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s)[..., :-1], v)


@trap(lambda r: [*heads(r), np.array([[True] * 4 + [False] * 3] * B)])
def unshifted_rows_without_keys(q, k, v, rows):
    e = jnp.exp(jnp.where(rows[:, None, :, None], scores(q, k), -1e30))
    o = jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)
    return jnp.where(o > 0, o, 0.0)


# Gradients that are multiples of one another by constants that the program applies where it likes.

def keys_drawn(random):
    return [*heads(random), np.array([3, 5], np.uint32)]


@trap(keys_drawn, grad=(0, 1, 2))
def dropout_of_scaled_queries(q, k, v, key):
    keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, (B, H, Q, K))
    p = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q * 0.3, k))
    return jnp.einsum("bhqk,bkhd->bqhd", p * keep / 0.9, v)


@jax.custom_vjp
def dropped_by_two_factors(q, k, v, keep):
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores(q, k)) * keep / 0.7, v)


def _forward_by_two_factors(q, k, v, keep):
    return dropped_by_two_factors(q, k, v, keep), (q, k, v, keep)


def _backward_by_two_factors(kept, d_o):
    q, k, v, keep = kept
    p = jax.nn.softmax(scores(q, k))
    d_p = jnp.einsum("bqhd,bkhd->bhqk", d_o, v) * keep * 3.0
    d_s = p * (d_p - jnp.sum(p * d_p, -1, keepdims=True))
    return (jnp.einsum("bhqk,bkhd->bqhd", d_s, k), jnp.einsum("bhqk,bqhd->bkhd", d_s, q) * 0.25,
            jnp.einsum("bhqk,bqhd->bkhd", p * keep / 0.7, d_o), jnp.zeros_like(keep))


dropped_by_two_factors.defvjp(_forward_by_two_factors, _backward_by_two_factors)


@trap(keys_drawn, grad=(0, 1, 2))
def dropout_by_two_factors(q, k, v, key):
    keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.7, (B, H, Q, K)).astype(jnp.float32)
    return dropped_by_two_factors(q, k, v, keep)


# Weights masked a second time, after the softmax: a row that sees no key has 0 then, not the mean of all values.

def rows_without_keys(random):
    mask = random.random((B, Q, K)) < 0.6
    mask[:, 2] = False
    mask[1] = False
    return [*heads(random), mask, random.random((B, K)) < 0.6, np.array([3, 5], np.uint32)]


def masked_and_masked(q, k, v, first, second, key=None):
    p = jnp.where(second, jax.nn.softmax(jnp.where(first, scores(q, k), -1e9)), 0.0)
    if key is not None:
        p = jnp.where(jax.random.bernoulli(jax.random.wrap_key_data(key), 0.7, p.shape), p / 0.7, 0)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@trap(rows_without_keys, grad=(0, 1, 2))
def masked_twice(q, k, v, mask, padding, key):
    mask = mask[:, None] & padding[:, None, None, :]
    return masked_and_masked(q, k, v, mask, mask)


@trap(rows_without_keys, grad=(0, 1, 2))
def masked_twice_and_dropped(q, k, v, mask, padding, key):
    mask = mask[:, None] & padding[:, None, None, :]
    return masked_and_masked(q, k, v, mask, mask, key)


@trap(rows_without_keys, grad=(0, 1, 2))
def masked_twice_by_either(q, k, v, mask, padding, key):
    before = jnp.tril(jnp.ones((Q, K), bool)) & (jnp.arange(Q) != 2)[:, None]
    mask = mask[:, None] | (before & padding[:, None, None, :])
    return masked_and_masked(q, k, v, mask, mask, key)


@trap(rows_without_keys, grad=(0, 1, 2))
def masked_again_by_both_of_either(q, k, v, mask, padding, key):
    mask, padding = mask[:, None], padding[:, None, None, :]
    return masked_and_masked(q, k, v, mask | padding, mask & padding)


@trap(rows_without_keys, grad=(0, 1, 2))
def masked_again_by_another(q, k, v, mask, padding, key):
    return masked_and_masked(q, k, v, mask[:, None], mask[:, None] & padding[:, None, None, :])


@trap(rows_without_keys, grad=(0, 1, 2))
def masked_again_by_less(q, k, v, mask, padding, key):
    return masked_and_masked(q, k, v, mask[:, None] & padding[:, None, None, :], mask[:, None])


@trap(lambda r: [*rows_without_keys(r), normal(r, B, 1, 1, K) - 1e9], grad=(0, 1, 2))
def masked_twice_beside_a_huge_bias(q, k, v, mask, padding, key, bias):
    mask = mask[:, None]
    return weights_of_masked(scores(q, k) + bias, mask, v)


def weights_of_masked(s, mask, v):
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(mask, jax.nn.softmax(jnp.where(mask, s, -1e9)), 0.0), v)


@trap(rows_without_keys, grad=(0, 1, 2))
def masked_twice_in_the_values_alone(q, k, v, mask, padding, key):
    # The gradient of the scores is that of the weights that are not masked again.
    @jax.custom_vjp
    def attend(q, k, v):
        return masked_and_masked(q, k, v, mask[:, None], mask[:, None])

    def forward(q, k, v):
        return attend(q, k, v), (q, k, v)

    def backward(kept, d_o):
        return jax.vjp(lambda q, k, v: weighed(jnp.where(mask[:, None], scores(q, k), -1e9), v), *kept)[1](d_o)

    attend.defvjp(forward, backward)
    return attend(q, k, v)


# Masks that the text decides, and that are no band.

def blocks_of_heads(i, j, h):
    return ((i // 2 + j // 3 + h) % 3 != 1) & ((i != 4) | (h != 1))  # the second head's fifth row sees no key


@trap(heads, grad=(0, 1, 2))
def fixed_mask_of_heads(q, k, v):
    mask = ((np.arange(Q)[:, None] // 2 + np.arange(K) // 3 + np.arange(H)[:, None, None]) % 3 != 1)
    return weighed(jnp.where(mask, scores(q, k), -1e30), v)


@trap(heads, grad=(0, 1, 2))
def fixed_mask_of_heads_hides_a_row(q, k, v):
    mask = blocks_of_heads(np.arange(Q)[:, None], np.arange(K), np.arange(H)[:, None, None])
    return weighed(jnp.where(mask, scores(q, k), -1e30), v)


@trap(heads, grad=(0, 1, 2))
def fixed_mask_of_indices_hides_a_row(q, k, v):
    mask = blocks_of_heads(jnp.arange(Q)[:, None], jnp.arange(K), jnp.arange(H)[:, None, None])
    return weighed(jnp.where(mask, scores(q, k), -1e30), v)


@trap(heads, grad=(0, 1, 2))
def fixed_mask_of_entries(q, k, v):
    mask = (np.arange(K) + 1) % np.array([2, 3])[:, None] == 0
    return weighed(jnp.where(mask[:, None, None, :], scores(q, k), -1e30), v)


@trap(lambda r: [*heads(r), r.random((B, K)) < 0.3], grad=(0, 1, 2))
def fixed_mask_of_entries_and_padding(q, k, v, padding):
    mask = ((np.arange(K) + 1) % np.array([2, 3])[:, None] == 0) & padding
    return weighed(jnp.where(mask[:, None, None, :], scores(q, k), -1e30), v)


# Several terms added to the scores, each varying along axes of its own.

def terms(random):
    whole = (random.random((B, K)) < 0.6).astype(np.int32)
    whole[1] = 0  # all of an entry's keys are hidden
    return [*heads(random), normal(random, 1, H, Q, K), normal(random, B, 1, Q, 1), whole]


def hidden_by(mask, by=1e9):
    return (1.0 - mask[:, None, None, :].astype(jnp.float32)) * by


@trap(terms, grad=(0, 1, 2, 3))
def bias_and_mask_of_numbers(q, k, v, bias, gate, mask):
    return weighed(scores(q, k) + (bias - hidden_by(mask)), v)


@trap(terms, grad=(0, 1, 2, 3, 4))
def gated_bias_and_mask_of_numbers(q, k, v, bias, gate, mask):
    return weighed(scores(q, k) + bias * gate - hidden_by(mask, 1e30), v)


@trap(terms, grad=(0, 1, 2))
def scaled_with_bias_and_mask_of_numbers(q, k, v, bias, gate, mask):
    return weighed((scores(q, k) + bias - hidden_by(mask)) * 0.5 + bias * bias, v)


@trap(terms, grad=(0, 1, 2))
def terms_beside_a_mask(q, k, v, bias, gate, mask):
    s = jnp.where(mask[:, None, None, :] != 0, scores(q, k) - bias, -1e30)
    return weighed(s - bias * gate, v)


@trap(terms, grad=(0, 1, 2))
def terms_beneath_a_mask_and_a_cap(q, k, v, bias, gate, mask):
    s = 5 * jnp.tanh(scores(q, k)) - 2 * bias + gate * bias
    return weighed(jnp.where(mask[:, None, None, :] != 0, s, -1e30), v)


# Vectors whose length calls do not take: zeros are added to them, and taken off again.

@trap(lambda r: [*heads(r, d=5, v=11), np.array([[True] * K, [False] * K])], grad=(0, 1, 2))
def odd_depths(q, k, v, mask):
    return weighed(jnp.where(mask[:, None, None, :], scores(q, k), -1e9), v)


@trap(lambda r: [*heads(r, q=K, d=10, v=10), np.arange(B * K, dtype=np.int32).reshape(B, K)], grad=(0, 1, 2))
def odd_depths_rotated(q, k, v, positions):
    return weighed(scores(rotated(q, positions), rotated(k, positions)), v)


@trap(lambda r: heads(r, q=K, d=12, v=12), grad=(0, 1, 2))
def odd_depths_of_layers(q, k, v):
    def layer(x, _):
        return x + weighed(scores(x, k), v), None

    return lax.scan(layer, q, None, length=3)[0]


# What is added to the scores within their reach: rounded as the program adds it, hidden by nothing.

def numbers_and_rows_without_any(random):
    shown = (random.random((B, H, Q, K)) < 0.6).astype(np.int32)
    shown[0, :, 2] = 0
    shown[1, 1] = 0
    return [*heads(random), shown]


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def shift_by_numbers_of_all_cells(q, k, v, shown):
    return weighed(scores(q, k) + (1.0 - shown.astype(jnp.float32)) * -10000.0, v)


@trap(lambda r: [*numbers_and_rows_without_any(r)[:3], r.random((B, H, Q, K)).astype(np.float32)], grad=(0, 1, 2, 3))
def trained_shift_by_numbers_of_all_cells(q, k, v, shown):
    return weighed(scores(q, k) - (1.0 - shown) * 100.0, v)


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def shift_by_a_mask_within_reach(q, k, v, shown):
    return weighed(scores(q, k) + jnp.where(shown[:, :1, :1] != 0, 0.0, -10000.0), v)


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def shift_by_a_little(q, k, v, shown):
    return weighed(scores(q, k) * 2 + jnp.where(shown != 0, 1.0, -2.0), v)


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def filled_within_reach(q, k, v, shown):
    return weighed(jnp.where(shown != 0, scores(q, k), -3.0), v)


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def filled_with_zeros_and_causal(q, k, v, shown):
    causal = np.arange(K) <= np.arange(Q)[:, None] - 2  # two rows see no key
    return weighed(jnp.where((shown != 0) & causal, scores(q, k), 0.0), v)


@trap(heads, grad=(0, 1, 2))
def causal_filled_within_reach(q, k, v):
    return weighed(jnp.where(np.arange(K) <= np.arange(Q)[:, None] - 2, scores(q, k), -1.5), v)


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def filled_within_reach_twice(q, k, v, shown):
    return weighed(jnp.where(shown != 0, jnp.where(shown[:, :, :1] != 0, scores(q, k), -1.0), -2.0), v)


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def filled_within_reach_and_masked_again(q, k, v, shown):
    p = jax.nn.softmax(jnp.where(shown != 0, scores(q, k), -1.0))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(shown != 0, p, 0.0), v)


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def filled_within_reach_and_not_shifted(q, k, v, shown):
    e = jnp.exp(jnp.where(shown != 0, scores(q, k), -1.0))
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


@trap(lambda r: [*(x * 8 for x in heads(r)), *numbers_and_rows_without_any(r)[3:], normal(r, H)], grad=(0, 1, 2, 4))
def filled_within_reach_beside_a_sink(q, k, v, shown, sink):
    q, k, v, sink = (x.astype(jnp.bfloat16) for x in (q, k, v, sink))
    s = jnp.where(shown != 0, scores(q, k), jnp.bfloat16(-9984))
    s = jnp.concatenate([s, jnp.broadcast_to(sink[None, :, None, None] * 9000, (B, H, Q, 1))], -1)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s)[..., :-1], v)


# Terms that are products with queries or keys, and weights masked a second time beside them.

def positions_and_mask(random):
    shown = random.random((B, K)) < 0.6
    shown[1] = False
    return [*heads(random), normal(random, 2 * K, H, D), shown]


def shifted(x, keys):
    """Each row one further to the left than the one before, by the shape alone, as XLNet does it."""
    b, h, rows, columns = x.shape
    x = lax.slice_in_dim(x.reshape(b, h, columns, rows), 1, columns, axis=2)
    return lax.slice_in_dim(x.reshape(b, h, rows, columns - 1), 0, keys, axis=3)


def by_distance(q, k, r):
    of_rows = jnp.einsum("bqhd,rhd->bhqr", q, r)
    of_keys = jnp.einsum("bkhd,rhd->bhkr", k, r)
    return shifted(of_rows, K) + jnp.swapaxes(shifted(of_keys, Q), 2, 3)


def weighed_twice(s, shown, v):
    p = jax.nn.softmax(jnp.where(shown, s, -1e9))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(shown, p, 0.0), v)


@trap(positions_and_mask, grad=(0, 1, 2, 3))
def positions_by_content(q, k, v, r, shown):
    return weighed(scores(q, k) + by_distance(q, k, r), v)


@trap(positions_and_mask, grad=(0, 1, 2, 3))
def positions_by_content_masked_twice(q, k, v, r, shown):
    return weighed_twice(scores(q, k) + by_distance(q, k, r), shown[:, None, None], v)


@trap(lambda r: [*(x * 8 for x in positions_and_mask(r)[:4]), positions_and_mask(r)[4]], grad=(0, 1, 2, 3))
def large_positions_by_content_masked_twice(q, k, v, r, shown):
    return weighed_twice(scores(q, k) + by_distance(q, k, r), shown[:, None, None], v)


@trap(positions_and_mask, grad=(0, 1, 2, 3))
def chosen_terms_masked_twice(q, k, v, r, shown):
    of = jnp.einsum("bqhd,rhd->bhqr", q, r)
    same = shown[:, None, :Q, None] == shown[:, None, None]
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + jnp.where(same, of[..., :1], of[..., 1:2])
    return weighed_twice(s * 0.3, shown[:, None, None], v)


@trap(lambda r: [*positions_and_mask(r)[:3], np.where(r.random((B, H, Q, K)) < 0.5, -1e9, 0).astype(np.float32),
                 positions_and_mask(r)[4]], grad=(0, 1, 2))
def masked_twice_beside_fills(q, k, v, bias, shown):
    low = jnp.where(jnp.arange(Q)[:, None] < 3, -1e9, bias)  # every score of these rows is as low as the fill
    return weighed_twice(scores(q, k) + low, shown[:, None, None], v)


@trap(lambda r: [*positions_and_mask(r)[:3], np.full((B, H, Q, K), 2**31 - 64, np.int32), positions_and_mask(r)[4]],
      grad=(0, 1, 2))
def masked_twice_beside_whole_numbers(q, k, v, number, shown):
    return weighed_twice(scores(q, k) - number.astype(jnp.float32) * 0.5, shown[:, None, None], v)


@trap(lambda r: [*positions_and_mask(r)[:3], np.ones((B, H, Q, 1), np.float32), np.full((K, 1), -1e9, np.float32),
                 positions_and_mask(r)[4]], grad=(0, 1, 2))
def masked_twice_beside_numbers_spread_by_a_product(q, k, v, rows, keys, shown):
    """A product that only spreads a fill: each of its sums is one number."""
    return weighed_twice(scores(q, k) + jnp.einsum("bhqr,kr->bhqk", rows, keys), shown[:, None, None], v)


# A factor for each head between the weights and the values.

@trap(lambda r: [*heads(r), normal(r, H)], grad=(0, 1, 2))
def weights_by_heads(q, k, v, of_heads):
    p = jnp.einsum("h,bhqk->bhqk", of_heads, jax.nn.softmax(scores(q, k)))
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@trap(lambda r: heads(r), grad=(0, 1, 2))
def weights_by_equal_heads(q, k, v):
    p = jnp.einsum("h,bhqk->hbqk", jnp.full(H, 0.5), jax.nn.softmax(scores(q, k)))
    return jnp.einsum("hbqk,bkhd->bqhd", p, v)


def numbers_lower_than_a_fill(random):
    low = np.where(random.random((B, 1, Q, K)) < 0.7, -4e9, 0).astype(np.float32)
    return [*heads(random), low, random.random((B, K)) < 0.6]


@trap(numbers_lower_than_a_fill, grad=(0, 1, 2))
def lowest_of_numbers_and_nothing_times_them(q, k, v, low, shown):
    """Nothing times what may be anything is no bound of it."""
    term = jnp.minimum(low * 0.0, low)
    return weighed(jnp.where(shown[:, None, None], scores(q, k) + term, -1e9), v)


def numbers_and_their_places(random):
    """Every key's number belongs to one of a few places, of which some hold nothing."""
    holds = np.ones((B, Q, 4), np.float32)
    holds[0] = 0
    holds[1, :3, :2] = 0
    return [*heads(random), holds, np.eye(4, dtype=np.float32)[random.integers(0, 4, K)], random.random((B, K)) < 0.6]


@trap(numbers_and_their_places, grad=(0, 1, 2))
def fill_made_before_a_product_spreads_it(q, k, v, holds, places, shown):
    """What the text multiplies a product's factors by is in the product too."""
    term = jnp.einsum("bqr,kr->bqk", (1 - holds) * -4e9, places)[:, None]
    return weighed(jnp.where(shown[:, None, None], scores(q, k) + term, -1e9), v)


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


# Numbers of data that the scores are multiplied by.

@trap(lambda r: [*heads(r), normal(r)], grad=(0, 1, 2, 3))
def scaled_by_the_mean_score(q, k, v, scale):
    s = scores(q, k)
    return weighed(s * (scale * jnp.mean(s)), v)


@trap(lambda r: [*heads(r), np.float32(-3)], grad=(0, 1, 2, 3))
def scaled_by_a_negative_number(q, k, v, scale):
    return weighed(scores(q, k) * scale, v)


@trap(lambda r: [*heads(r), np.float32(0)], grad=(0, 1, 2, 3))
def scaled_by_nothing(q, k, v, scale):
    return weighed(jnp.where(jnp.arange(K) < 5, scores(q, k) * scale, -jnp.inf), v)


@trap(lambda r: [*heads(r), np.float32(1e9)])
def scaled_up_to_the_fill(q, k, v, scale):
    return weighed(jnp.where(jnp.arange(K) < 5, scores(q, k) * scale, -1e9), v)


@trap(lambda r: [*heads(r), normal(r, K), np.float32(0.7)], grad=(0, 1, 2, 3, 4))
def scaled_by_keys_and_squared(q, k, v, of_keys, scale):
    return weighed(scores(q, k) * of_keys * scale**2 * jnp.cos(scale), v)


@trap(lambda r: [*heads(r), np.float32(0.7)], grad=(0, 1, 2, 3))
def scaled_and_added(q, k, v, scale):
    return weighed((scores(q, k) + jnp.arange(K) / 4) * scale, v)


@trap(lambda r: [*heads(r), np.float32(0.7)], grad=(0, 1, 2, 3))
def divided_by_a_trained_number(q, k, v, temperature):
    return weighed(scores(q, k) / temperature, v)


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
