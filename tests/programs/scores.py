"""What is done to scores beside masks: soft caps, biases, slopes."""

from text import SIZES, aligned, dims, drawn


def soft_cap(text):
    cap = text.choices("soft cap", "10.0 * jnp.tanh(s / 10.0)", "jnp.tanh(s * 0.2) * 5.0", "s / (1 + jnp.abs(s) / 20)",
                       "jnp.clip(s, -4.0, 4.0)", often=0.4)
    text.let("s", cap)


def bias(text, axes, letters_of_q):
    """A bias along some of the axes: whole, of blocks, of constants, in another type."""
    c, of = text.choices, f"bias {len([x for x in text.arguments if x.startswith('bias')])}"
    letters = "".join(x for x in axes if c.yes(f"{of} along {x}", 0.85 if x in "k" else 0.7 if x == "q" else 0.45)) or axes[-1]
    dtype = c(f"{of} type", "jnp.float32", "jnp.bfloat16", "jnp.float16", often=0.12)
    size = c(f"{of} size", 1.0, 10.0, 1e-2, 1000.0, often=0.2)
    kind = c(f"{of} kind", "argument", "constant", "blocks", "unit axes", "table", "of rows", "integers", "of queries", often=0.35)
    if kind == "of rows" and "q" in axes:
        letters = "q" + ("h" if "h" in axes else "")
    if kind == "of queries" and "d" in letters_of_q:
        rest = [y for y in letters_of_q if y in axes and y != "q"]
        x = text.argument("relative", None, "normal(Q, K, D, scale=0.3)", moving=True)
        letters = "".join(rest) + "qk"
        x = text.new("bias", f'jnp.einsum("{letters_of_q},qkd->{letters}", q, {x})')
    elif kind == "constant":
        x = text.constant("bias", f"normal({dims(letters)}, scale={size})")
    elif kind == "blocks" and text.sizes[letters[-1]] % 2 == 0:
        last = letters[-1]
        lead = dims(letters[:-1]) + (", " if letters[:-1] else "")
        x = text.argument("bias", None, f"normal({lead}{SIZES[last]} // 2, scale={size}, dtype={dtype})", moving=True)
        by = c(f"{of} blocks by", f"jnp.repeat({x}, 2, -1)", f"jnp.tile({x}, {(1,) * (len(letters) - 1) + (2,)})", often=0.4)
        x = text.new("bias", by)
    elif kind == "unit axes":
        sizes = ", ".join(SIZES[y] if y in letters else "1" for y in axes)
        x = text.argument("bias", None, f"normal({sizes}, scale={size}, dtype={dtype})", moving=True)
        letters = axes
    elif kind == "table" and "q" in axes and "k" in axes:
        head = "h" if "h" in axes else ""
        x = text.argument("bias_table", None, f"normal({dims(head) + ', ' if head else ''}Q + K - 1, scale={size})", moving=True)
        x = text.new("bias", f"{x}[..., jnp.arange(K)[None] - jnp.arange(Q)[:, None] + Q - 1]")
        letters = head + "qk"
    elif kind == "integers":
        x = text.argument("bias", letters, f"integers(-3, 4, {dims(letters)}, dtype=np.int8)")
    else:
        if c.yes(f"{of} in another order", 0.15):
            letters = "".join(c.order(f"{of} order", letters))
        x = text.argument("bias", letters, f"normal({dims(letters)}, scale={size}, dtype={dtype})", moving=True)
    sign = c(f"{of} is", "+", "-", often=0.15)
    text.let("s", f"s {sign} {aligned(x, letters, axes)}")


def slopes(text, axes):
    c = text.choices
    of = c("slopes along", "h" if "h" in axes else "g" if "g" in axes else "", "", "b", "bh", "gr", often=0.35)
    of = "".join(x for x in of if x in axes)
    kind = c("slopes are", "argument", "constants", often=0.4)
    if kind == "constants" or not of:
        n = " * ".join(SIZES[x] for x in of) or "1"
        x = text.new("slopes", f"2.0 ** (-8.0 * (jnp.arange({n}, dtype=jnp.float32) + 1) / ({n}))" +
                     (f".reshape({dims(of)})" if len(of) > 1 else "" if of else "[0]"))
    else:
        x = text.argument("slopes", of, drawn("normal", of, "scale=0.3"), moving=True)
    far = c("distance", "(jnp.arange(K)[None] - jnp.arange(Q)[:, None])", "jnp.arange(K)[None]",
            "-jnp.abs(jnp.arange(K)[None] - jnp.arange(Q)[:, None])", "(jnp.arange(K)[None] - (K - 1))",
            "jnp.minimum(jnp.arange(K)[None] - jnp.arange(Q)[:, None], 0)",
            "(jnp.arange(K, dtype=jnp.uint8)[None] - jnp.arange(Q, dtype=jnp.uint8)[:, None])",
            "(jnp.arange(K, dtype=jnp.int8)[None] * 20)", often=0.6)
    letters = "k" if far.startswith("jnp.arange(K)[None]") and "Q" not in far or "(K - 1)" in far or "* 20" in far else "qk"
    distance = text.new("distance", f"{far}.astype(jnp.float32)" + ("[0]" if letters == "k" else ""))
    text.let("s", f"s + {aligned(x, of, axes)} * {aligned(distance, letters, axes)}")
