"""Layers, unrolled and in loops."""

import jax
import jax.numpy as jnp
from jax import lax

from forms.dropout import dropped
from forms.form import B, D, FORMS, H, K, KB, OB, Q, QB, VB, both, causal, form, shape, softmax


@form(shape(B, Q, H * D), shape(3, 4, H * D, H * D))
def layers_unrolled(x, weights):
    def loss(x, weights):
        for w in weights:
            q, k, v = ((x @ w[i]).reshape(B, Q, H, D) for i in range(3))
            s = jnp.where(causal(Q, Q), jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, -1e30)
            o = jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)
            x = x + jnp.tanh(o.reshape(x.shape) @ w[3])
        return jnp.sum(x**2)

    return jax.value_and_grad(loss, (0, 1))(x, weights)


def attention_layer(x, w, weigh=lambda p: p):
    q, k, v = ((x @ w[i]).reshape(B, Q, H, D) for i in range(3))
    s = jnp.where(causal(Q, Q), jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, -1e30)
    o = jnp.einsum("bhqk,bkhd->bqhd", weigh(softmax(s)), v)
    return x + jnp.tanh(o.reshape(x.shape) @ w[3])


def layers_in_scan(checkpoint):
    def loss(x, weights):
        def layer(x, w):
            return attention_layer(x, w), None

        layer = jax.checkpoint(layer) if checkpoint else layer
        return jnp.sum(lax.scan(layer, x, weights)[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))


LAYERS = shape(B, Q, H * D), shape(3, 4, H * D, H * D)
FORMS["scan"] = (layers_in_scan(False), LAYERS)
FORMS["scan_checkpoint"] = (layers_in_scan(True), LAYERS)


def kept_by_policy(policy, scanned):
    """Layers whose checkpoint keeps scores, or weights too."""
    def loss(x, weights):
        layer = jax.checkpoint(lambda x, w: (attention_layer(x, w), None), policy=policy)
        if scanned:
            return jnp.sum(lax.scan(layer, x, weights)[0] ** 2)
        return jnp.sum(layer(layer(x, weights[0])[0], weights[1])[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))


for name in ("everything_saveable", "dots_saveable"):
    policy = getattr(jax.checkpoint_policies, name)
    FORMS[f"layers_{name}"] = (kept_by_policy(policy, False), LAYERS)
    FORMS[f"scan_{name}"] = (kept_by_policy(policy, True), LAYERS)


def kept_by_heads(turn=lambda x: x):
    """Layers of which a checkpoint keeps the products: all that is made of queries and keys is made again."""
    def attend(x, w, b, visible):
        q, k, v = jnp.einsum("btc,xcnd->xbtnd", x, w.reshape(3, H * D, H, D)) + b[:, None, None]
        s = jnp.where(visible, jnp.einsum("bqhd,bkhd->bhqk", turn(q), turn(k)) * D**-0.5, -1e30)
        return x + jnp.tanh(jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v).reshape(x.shape))

    def loss(x, weights, biases, visible):
        layer = jax.checkpoint(lambda x, p: (attend(x, *p, visible), None), policy=jax.checkpoint_policies.dots_saveable)
        return jnp.sum(lax.scan(layer, x, (weights, biases))[0] ** 2)

    return jax.value_and_grad(loss, (0, 1, 2))


def turned(x):
    angles = jnp.arange(Q)[:, None, None] * 10.0 ** -jnp.arange(D // 2)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles)], -1)


BY_HEADS = shape(B, Q, H * D), shape(3, 3, H * D, H * D), shape(3, 3, H, D), shape(B, 1, Q, Q, dtype=jnp.bool_)
FORMS["scan_dots_saveable_with_biases"] = (kept_by_heads(), BY_HEADS)
FORMS["scan_dots_saveable_rotated"] = (kept_by_heads(turned), BY_HEADS)


def attention_of(visible):
    def attend(q, k, v):
        s = jnp.where(visible, jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, -1e30)
        return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)

    return attend


def mapped(attend, *over):
    return jax.grad(lambda *x: jnp.sum(jnp.sin(lax.map(lambda each: attend(*each), x))), (0, 1, 2))(*over)


@form(QB, KB, VB)
def mapped_over_entries(q, k, v):
    def attend(q, k, v):
        p = softmax(jnp.where(causal(), jnp.einsum("qhd,khd->hqk", q, k), -1e30))
        return jnp.einsum("hqk,khd->qhd", p, v)

    return mapped(attend, q, k, v)


@form(QB, KB, VB)
def mapped_over_heads(q, k, v):
    """The loop's arrays are made outside of it, and both loops read their rows."""
    heads = (x.swapaxes(1, 2).reshape(B * H, -1, x.shape[3]) for x in (q, k, v))
    return mapped(lambda q, k, v: softmax(q @ k.T) @ v, *heads)


@both(QB, KB, VB, shape(dtype=jnp.bool_), out=OB)
def branches(q, k, v, near):
    """Each branch is a checkpoint: what its backward needs is computed again there."""
    windows = [jax.checkpoint(attention_of(visible)) for visible in (causal(offset=4), causal(offset=4) & ~causal(offset=1))]
    return lax.cond(near, *windows, q, k, v)


def scan_of_branches(x, weights, skipped):
    def attended(x, w):
        q, k, v = ((x @ w[i]).reshape(B, Q, H, D) for i in range(3))
        return x + attention_of(causal(Q, Q))(q, k, v).reshape(x.shape)

    def layer(x, per_layer):
        w, skip = per_layer
        return lax.cond(skip, lambda x, w: x, attended, x, w), None

    return jnp.sum(lax.scan(jax.checkpoint(layer), x, (weights, skipped))[0] ** 2)


FORMS["scan_of_branches"] = (scan_of_branches, (*LAYERS, shape(3, dtype=jnp.bool_)))
FORMS["scan_of_branches_grad"] = (jax.grad(scan_of_branches, (0, 1)), (*LAYERS, shape(3, dtype=jnp.bool_)))


def called_twice(stack):
    """A function under jit is one in the module, and so are the bodies of its loop and the branches in it."""
    def loss(x, weights, *rest):
        return jnp.sum(stack(stack(x, weights, *rest), 0.5 * weights, *rest) ** 2)

    return loss


@jax.jit
def stacked(x, weights):
    return lax.scan(lambda x, w: (attention_layer(x, w), None), x, weights)[0]


@jax.jit
def chosen_or_not(x, weights, chosen):
    return lax.cond(chosen, lambda x, w: lax.scan(lambda x, w: (attention_layer(x, w), None), x, w)[0], lambda x, w: x, x, weights)


FORMS["scan_called_twice"] = (jax.value_and_grad(called_twice(stacked), (0, 1)), LAYERS)
FORMS["scan_of_a_branch_called_twice"] = (called_twice(chosen_or_not), (*LAYERS, shape(dtype=jnp.bool_)))
FORMS["scan_of_a_branch_called_twice_grad"] = (jax.grad(called_twice(chosen_or_not), (0, 1)), (*LAYERS, shape(dtype=jnp.bool_)))


def dropping_layers_in_scan(checkpoint):
    def loss(x, weights, keys):
        def layer(x, per_layer):
            w, key = per_layer
            key = jax.random.wrap_key_data(key)
            return attention_layer(x, w, lambda p: dropped(p, key, p.shape)), None

        layer = jax.checkpoint(layer) if checkpoint else layer
        return jnp.sum(lax.scan(layer, x, (weights, keys))[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))


def dropping_by_generator(x, weights, keys):
    def loss(x, weights):
        def layer(x, per_layer):
            w, key = per_layer
            key = jax.random.wrap_key_data(key, impl="rbg")
            return attention_layer(x, w, lambda p: dropped(p, key, p.shape)), None

        return jnp.sum(lax.scan(jax.checkpoint(layer), x, (weights, keys))[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))(x, weights)


FORMS["scan_dropped_by_generator_checkpoint"] = (dropping_by_generator, (*LAYERS, shape(3, 4, dtype=jnp.uint32)))
KEYS = shape(3, 2, dtype=jnp.uint32)
FORMS["scan_dropped_out"] = (dropping_layers_in_scan(False), (*LAYERS, KEYS))
FORMS["scan_dropped_out_checkpoint"] = (dropping_layers_in_scan(True), (*LAYERS, KEYS))


@form(*LAYERS)
def scan_reversed(x, weights):
    def loss(x, weights):
        return jnp.sum(lax.scan(lambda x, w: (attention_layer(x, w), None), x, weights, reverse=True)[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))(x, weights)


@form(LAYERS[0], shape(2, 3, 4, H * D, H * D))
def scan_of_scans(x, weights):
    def loss(x, weights):
        def layers(x, weights):
            return lax.scan(lambda x, w: (attention_layer(x, w), None), x, weights)

        return jnp.sum(lax.scan(layers, x, weights)[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))(x, weights)


@form(*LAYERS, shape(B, Q, dtype=jnp.bool_))
def scan_with_mask(x, weights, mask):
    m = (mask[:, None, :] & causal(Q, Q))[:, None]

    def loss(x, weights):
        def layer(x, w):
            q, k, v = ((x @ w[i]).reshape(B, Q, H, D) for i in range(3))
            s = jnp.where(m, jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, -1e30)
            o = jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)
            return x + jnp.tanh(o.reshape(x.shape) @ w[3]), None

        return jnp.sum(lax.scan(layer, x, weights)[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))(x, weights)


@form(*LAYERS)
def scan_keeping_weights(x, weights):
    """The probabilities are stacked for another reader too."""

    def loss(x, weights):
        def layer(x, w):
            seen = []
            x = attention_layer(x, w, lambda p: seen.append(p) or p)
            return x, jnp.max(seen[0], axis=-1)

        x, largest = lax.scan(layer, x, weights)
        return jnp.sum(x**2) + jnp.sum(largest)

    return jax.value_and_grad(loss, (0, 1))(x, weights)


@both(QB, KB, VB, shape(H, Q, K), shape(B, K, dtype=jnp.int32), out=OB)
def bias_of_all_layers(q, k, v, bias, shown):
    """As T5's: its gradients by the layers are added up before they are summed over the batch."""
    term = bias[None] + jnp.where(shown[:, None, None, :] > 0, 0.0, -1e10)
    o = 0.0
    for _ in range(3):
        o += jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) + term), v)
        q += o[..., :D]
    return o


@form(QB, KB, shape(B, K, H, D), shape(B, H, Q, K))
def second_derivative_through_a_loop(q, k, v, keep):
    """What the outer derivative's loop joins lies in other computations than what it is looked for in."""

    def gradients(k, v):
        def loss(k, v):
            def body(_, x):
                s = jnp.einsum("bqhd,bkhd->bhqk", x, k) / 2.5
                e = jnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True)))
                p = e / e.sum(-1, keepdims=True) * keep / 0.75
                o = jnp.einsum("bhqk,bkhd->bqhd", p, v)
                return x + 0.1 * jnp.resize(o.ravel(), x.size).reshape(x.shape)

            return jnp.sum(jnp.sin(lax.fori_loop(0, 1, body, q)))

        return jax.grad(loss, (0, 1))(k, v)

    return jax.grad(lambda *x: sum(jnp.sum(g * g) for g in gradients(*x)), (0, 1))(k, v)
