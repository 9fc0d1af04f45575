"""Dropout by a predicate that says what is dropped, and what looks like it."""

import jax
import jax.numpy as jnp
import numpy as np

from traps.trap import B, H, K, Q, heads, scores, trap


def drawn(random):
    return [*heads(random), np.array([11, 4], np.uint32)]


def given(random):
    """Some rows are dropped whole, others not at all."""
    drop = random.random((B, H, Q, K)) < 0.3
    drop[0, 1, 2], drop[1, 0, 3] = True, False
    return [*heads(random), drop]


def uniform(key):
    return jax.random.uniform(jax.random.wrap_key_data(key), (B, H, Q, K))


def output(p, v):
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@trap(drawn, grad=(0, 1, 2))
def dropped_not_below_a_share(q, k, v, key):
    return output(jnp.where(uniform(key) >= 0.7, 0, jax.nn.softmax(scores(q, k)) / 0.7), v)


@trap(drawn, grad=(0, 1, 2))
def dropped_above_a_share(q, k, v, key):
    return output(jnp.where(0.7 < uniform(key), 0, jax.nn.softmax(scores(q, k)) / 0.7), v)


@trap(drawn, grad=(0, 1, 2))
def dropped_below_a_rate(q, k, v, key):
    return output(jax.nn.softmax(scores(q, k)) * ~(uniform(key) < 0.3) / 0.7, v)


@trap(drawn, grad=(0, 1, 2))
def dropped_by_a_rate_of_nothing(q, k, v, key):
    return output(jnp.where(uniform(key) < 0.0, 0, jax.nn.softmax(scores(q, k))), v)


@trap(drawn, grad=(0, 1, 2))
def dropped_by_a_rate_of_all_but_few(q, k, v, key):
    return output(jnp.where(uniform(key) < 0.98, 0, jax.nn.softmax(scores(q, k)) / 0.02), v)


@trap(given)
def dropped_by_a_rate_of_all(q, k, v, drop):
    """What is kept is an infinity: 0 / 0 where it is dropped by a product, 0 where by a choice."""
    p = jax.nn.softmax(scores(q, k)) / 0.0
    return output(jnp.where(jnp.ones_like(drop), 0, p), v), output(jnp.where(drop, 0, p), v)


@trap(given, grad=(0, 1, 2))
def dropped_by_a_byte_less_than_one(q, k, v, drop):
    return output(jax.nn.softmax(scores(q, k)) * (np.uint8(1) - drop.astype(jnp.uint8)).astype(jnp.float32) / 0.7, v)


@trap(given, grad=(0, 1, 2))
def dropped_by_a_byte_that_wraps(q, k, v, drop):
    """0 less 1 is 255."""
    return output(jax.nn.softmax(scores(q, k)) * (drop.astype(jnp.uint8) - np.uint8(1)).astype(jnp.float32), v)


@trap(given, grad=(0, 1, 2))
def dropped_by_a_signed_byte(q, k, v, drop):
    """0 less 1 is -1."""
    return output(jax.nn.softmax(scores(q, k)) * (drop.astype(jnp.int8) - np.int8(1)).astype(jnp.float32), v)


@trap(given, grad=(0, 1, 2))
def dropped_by_a_part(q, k, v, drop):
    return output(jax.nn.softmax(scores(q, k)) * (1.5 - drop), v)


@trap(given, grad=(0, 1, 2))
def dropped_to_a_number(q, k, v, drop):
    return output(jnp.where(drop, 0.01, jax.nn.softmax(scores(q, k)) / 0.7), v)


@trap(given, grad=(0, 1, 2))
def dropped_and_renormalised(q, k, v, drop):
    p = jnp.where(drop, 0, jax.nn.softmax(scores(q, k)))
    return output(p / (p.sum(-1, keepdims=True) + 0.1), v)


@trap(given, grad=(0, 1, 2))
def dropped_before_the_sum(q, k, v, drop):
    """A mask of keys, no dropout: the sum is of what is left."""
    e = jnp.exp(scores(q, k)) * (1 - drop)
    return output(e / jnp.maximum(e.sum(-1, keepdims=True), 1e-9), v)


@trap(given, grad=(0, 1, 2))
def dropped_for_a_head_and_then_for_all(q, k, v, drop):
    p = jnp.where(drop[:, :1], 0, jax.nn.softmax(scores(q, k)))
    return output(jnp.where(drop, 0, p), v)


@trap(given, grad=(0, 1, 2))
def dropped_as_one_head_is(q, k, v, drop):
    return output(jnp.where(drop[:, :1], 0, jax.nn.softmax(scores(q, k)) / 0.7), v)


@trap(given, grad=(0, 1, 2))
def kept_in_the_forward_and_dropped_from_what_is_taken_off(q, k, v, drop):
    """Beside an attention whose weights are kept where the other's are dropped."""
    p = jax.nn.softmax(scores(q, k))
    return output(jnp.where(drop, p, 0), v), output(jnp.where(drop, 0, p), v) * 0.5


def numbers_some_of_which_are_none(random):
    numbers = random.random((B, H, Q, K)).astype(np.float32)
    return [*heads(random), np.where(random.random(numbers.shape) < 0.2, np.nan, numbers).astype(np.float32)]


@trap(numbers_some_of_which_are_none, grad=(0, 1, 2))
def kept_where_a_number_is_none(q, k, v, numbers):
    """NaN is below no rate, and so kept; nor is it above one, where it is dropped."""
    p = jax.nn.softmax(scores(q, k)) / 0.7
    return output(jnp.where(numbers < 0.3, 0, p), v)


@trap(numbers_some_of_which_are_none, grad=(0, 1, 2))
def dropped_where_a_number_is_none(q, k, v, numbers):
    p = jax.nn.softmax(scores(q, k)) / 0.7
    return output(p * (1 - ~(numbers >= 0.3)), v)


@jax.custom_vjp
def dropped_otherwise_in_the_gradient(q, k, v, drop):
    return output(jnp.where(drop, 0, jax.nn.softmax(scores(q, k))) / 0.7, v)


def _forward(q, k, v, drop):
    return dropped_otherwise_in_the_gradient(q, k, v, drop), (q, k, v, drop)


def _backward(kept, d_o):
    """The gradient of the attention whose weights are kept where this one's are dropped."""
    q, k, v, drop = kept
    return *jax.vjp(lambda *x: output(jax.nn.softmax(scores(*x[:2])) * drop / 0.7, x[2]), q, k, v)[1](d_o), None


dropped_otherwise_in_the_gradient.defvjp(_forward, _backward)


@trap(given, grad=(0, 1, 2))
def dropped_where_the_gradient_keeps(q, k, v, drop):
    return dropped_otherwise_in_the_gradient(q, k, v, drop)
