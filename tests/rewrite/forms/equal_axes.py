"""Every axis of one size: what mixes up axes changes no shape here, so that changed programs (mutants_test.cpp) stay programs."""

import jax
import jax.numpy as jnp

from forms.form import both, causal, shape, softmax

N = 4
X = shape(N, N, N, N)


def scores(q, k):
    return jnp.einsum("bqhd,bkhd->bhqk", q, k) * N**-0.5


def weighed(s, v):
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(X, X, X, shape(N, N, N), shape(N, N), out=X)
def equal_axes_biases(q, k, v, of_heads, of_keys):
    s = scores(q, k) + of_heads + of_keys[:, None, None]
    return weighed(jnp.where(causal(N, N), s, -1e30), v)


@both(X, X, X, shape(N), out=X)
def equal_axes_slopes_in_a_window(q, k, v, slopes):
    i, j = jnp.arange(N)[:, None], jnp.arange(N)[None]
    s = 5 * jnp.tanh(scores(q, k) / 5) + slopes[:, None, None] * (j - i)
    return weighed(jnp.where((j <= i) & (i - j < 2), s, -1e30), v)


@both(X, shape(N, N, 2, N), shape(N, N, 2, N), shape(N), out=X)
def equal_axes_groups_and_sinks(q, k, v, sinks):
    s = jnp.einsum("bqgrd,bkgd->bgrqk", q.reshape(N, N, 2, 2, N), k) * N**-0.5
    s = jnp.where(causal(N, N), s, -1e30)
    s = jnp.concatenate([s, jnp.broadcast_to(sinks.reshape(2, 2, 1, 1), (N, 2, 2, N, 1))], -1)
    return jnp.einsum("bgrqk,bkgd->bqgrd", softmax(s)[..., :-1], v).reshape(q.shape)


@both(X, X, X, shape(N, N, N, N, dtype=jnp.bool_), out=X)
def equal_axes_dropped(q, k, v, keep):
    p = softmax(jnp.where(causal(N, N), scores(q, k), -1e30))
    return jnp.einsum("bhqk,bkhd->bqhd", p * keep / 0.75, v)


@both(X, X, X, shape(N, N, dtype=jnp.int32), shape(N, N, dtype=jnp.int32), out=X)
def equal_axes_segments(q, k, v, of_rows, of_keys):
    m = (of_rows[:, :, None] == of_keys[:, None]) & causal(N, N)
    return weighed(jnp.where(m[:, None], scores(q, k), -1e30), v)


@both(X, X, X, shape(N, N), shape(N, N), out=X)
def equal_axes_rotated(q, k, v, of_rows, of_keys):
    def rotated(x, angle):
        cos, sin = (f(angle)[:, :, None, None] * jnp.ones(2) for f in (jnp.cos, jnp.sin))
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    return weighed(scores(rotated(q, of_rows), rotated(k, of_keys)), v)


@both(shape(N, N, N), shape(N, N, N), shape(N, N, N), shape(N, N, N), shape(N, N, N), out=shape(N, N, N))
def equal_axes_projections(x, wq, wk, wv, wo):
    q, k, v = (jnp.einsum("bsm,mhd->bshd", x, w) for w in (wq, wk, wv))
    return jnp.einsum("bshd,hdm->bsm", weighed(jnp.where(causal(N, N), scores(q, k), -1e30), v), wo)
