"""Attention by JAX's own function, with what it can be told."""

from text import SIZES


def attend(text):
    """Writes o by jax.nn.dot_product_attention."""
    c = text.choices
    heads = "H" if c.yes("library heads each", 0.3) else "G"
    dtype = c("library type", "jnp.float32", "jnp.bfloat16", "jnp.float16", often=0.3)
    for x, dims in (("q", "B, Q, H, D"), ("k", f"B, K, {heads}, D"), ("v", f"B, K, {heads}, D")):
        text.argument(x, None, f"normal({dims}, dtype={dtype})", moving=True)
    told = []
    for name, draw in (("bias", "normal({dims})"), ("mask", 'chance(0.7, {dims}, hidden="{hidden}")')):
        if c.any(f"library {name}", False, True, False):
            dims = ", ".join(SIZES[x] if c.yes(f"library {name} along {x}", 0.9) else "1" for x in "bhqk")
            hidden = c(f"library {name} hidden", "", "first", "last", often=0.5)
            x = text.argument(name, None, draw.format(dims=dims, hidden=hidden), moving=name == "bias")
            told.append(f"{name}={x}")
    if c.any("library causal", False, True):
        told.append("is_causal=True")
    if c.any("library scale", False, False, True):
        told.append("scale=0.2")
    for name, size in (("query_seq_lengths", "Q"), ("key_value_seq_lengths", "K")):
        if c.any(f"library {name}", False, False, True):
            told.append(f"{name}={text.argument(name[:5] + '_lengths', 'b', f'lengths(B, {size})')}")
    if c.any("library window", False, False, False, True):
        told.append(f"local_window_size={c('window of both sides', '2', '(3, 0)', '(0, 2)', '(1, 1)', often=0.7)}")
    text.new("o", f"jax.nn.dot_product_attention(q, k, v{''.join(', ' + x for x in told)})")
