"""Queries, keys and values: their heads, axes, types, rotations, and the product of the first two."""

from text import SIZES, aligned, dims, drawn, shape, transposed

TYPES = ("jnp.float32", "jnp.bfloat16", "jnp.float16")


def draw_sizes(c):
    """Letters -> sizes: all different on purpose, or many equal, which shows axes mixed up."""
    size = {"a": 2, "b": c.size("B", 2, 2, 3, 1), "g": c.size("G", 1, 2, 2, 3), "r": c.size("R", 1, 2, 3)}
    size["q"] = c.size("Q", 7, 5, 3, 2, 6, 9, 13, 18, 33, 4, 11, 65, 1)
    size["k"] = c.size("K", 9, 5, 4, 2, 7, 11, 16, 21, 40, 65, 3, 12, 1)
    size["d"] = c.size("D", 8, 8, 16, 24, 40)
    size["v"] = c.size("V", 16, 8, 32, 24)
    if c.yes("square", 0.45):
        size["k"] = size["q"]
    if c.yes("equal depths", 0.5):
        size["v"] = size["d"]
    if c.any("long", *[False] * 39, True):  # where narrow indices wrap and are rounded
        size.update(b=1, g=1, r=2, q=c.size("long Q", 300, 140), k=c.size("long K", 320, 150, 270), d=8, v=8)
    if c.yes("odd depth", 0.03):
        size["d"] = 5
    if c.yes("all equal", 0.08):
        size.update(b=8, g=8, r=1, q=8, k=8, d=8, v=8)
        if c.yes("all equal but groups", 0.5):
            size.update(b=4, g=4, r=4, q=16, k=16, d=16, v=16)
    size["h"] = size["g"] * size["r"]
    return size


def draw_operands(text):
    """Writes q, k and v; gives the axes of each, their type, and how their product is to be scaled."""
    c = text.choices
    dtype = c.any("type", *[TYPES[0]] * 7, *TYPES[1:], TYPES[1])
    heads = c.any("heads", "each", "each", "repeated", "tiled", "grouped", "one", "shared")
    batch = c("batch", "b", "", "ab", often=0.12)
    whole = {"q": batch + "hqd", "k": batch + "hkd", "v": batch + "hkv"}
    letters = dict(whole)
    if heads in ("repeated", "tiled", "grouped"):
        letters.update(k=batch + "gkd", v=batch + "gkv")
    elif heads == "one":
        letters.update(k=batch + "kd", v=batch + "kv")
    elif heads == "shared":  # broadcast over heads or batch
        for x in "qkv":
            lost = c.any(f"{x} is shared over", "", "h", *(["b", "bh"] if "b" in batch else ["h"]))
            letters[x] = "".join(y for y in letters[x] if y not in lost)
    elif c.yes("no heads", 0.06):
        letters = {x: y.replace("h", "") for x, y in letters.items()}
        whole = dict(letters)
    if whole["q"] == letters["q"] == "bhqd" and heads == "each" and text.sizes["q"] == text.sizes["k"] and c.yes("projected", 0.3):
        _projected(text, letters, dtype)
        _rope(text, letters, dtype, batch)
        return letters, dtype, _scale_before(text)
    same = c("same", "", "k is v", "q is k", often=0.06)
    for x in "qkv":
        if same == "k is v" and x == "v" and text.sizes["v"] == text.sizes["d"]:
            text.let(text.name("v"), "k")
            letters["v"] = letters["k"].replace("d", "v")
            continue
        if same == "q is k" and x == "k" and text.sizes["q"] == text.sizes["k"] and \
                letters["q"].replace("q", "k") == letters["k"]:
            text.let(text.name("k"), "q")
            continue
        letters[x] = _argument(text, x, letters[x], c(f"type of {x}", dtype, *TYPES, often=0.08))
    _rope(text, letters, dtype, batch)
    scale = _scale_before(text)
    if heads in ("repeated", "tiled"):
        for x in "kv":
            axis = letters[x].index("g")
            if heads == "repeated":
                spelled = c(f"{x} repeated by", "repeat", "broadcast", often=0.4)
                if spelled == "repeat":
                    text.let(x, f"jnp.repeat({x}, R, {axis})")
                else:
                    wide = letters[x].replace("g", "gr")
                    text.let(x, f"jnp.broadcast_to({aligned(x, letters[x], wide)}, {shape(wide)})"
                                f".reshape{shape(letters[x].replace('g', 'h'))}")
            else:
                text.let(x, f"jnp.tile({x}, {tuple('R' if i == axis else 1 for i in range(len(letters[x])))})".replace("'", ""))
            letters[x] = letters[x].replace("g", "h")
    elif heads == "grouped":
        wide = letters["q"].replace("h", "gr")
        text.let("q", f"q.reshape{shape(wide)}")
        letters["q"] = wide
    elif heads in ("shared", "one") and c.any("broadcast before", True, True, heads == "shared", False):
        for x in "qkv":
            if sorted(letters[x]) != sorted(whole[x]):
                target = "".join(y for y in whole[x] if y not in letters[x]) + letters[x]
                text.let(x, f"jnp.broadcast_to({aligned(x, letters[x], target)}, {shape(target)})")
                letters[x] = target
    return letters, dtype, scale


def _argument(text, x, letters, dtype):
    """One operand, its axes in some order, its heads perhaps merged with its depth; gives the axes after unpacking."""
    c = text.choices
    batch = "".join(y for y in letters if y in "ab")
    rest = [y for y in letters if y not in "ab"]
    order = c(f"axes of {x}", "length first", "heads first", "any", often=0.5)
    if order == "length first" and len(rest) == 3:
        rest = [rest[1], rest[0], rest[2]]
    elif order == "any":
        rest = c.order(f"order of axes of {x}", batch + "".join(rest))
        batch = ""
    laid = batch + "".join(rest)
    number = f"normal({dims(laid)}, dtype={dtype}, scale={_size_of(c, x)})"
    name = text.argument(x, laid, number, moving=True)
    text.letters[name] = laid
    head = next((y for y in laid if y in "hg"), None)
    if head and laid[-1] in "dv" and laid[-2] == head and c.yes(f"{x} comes merged", 0.12):
        merged = dims(laid[:-2]) + (", " if laid[:-2] else "") + f"{SIZES[head]} * {SIZES[laid[-1]]}"
        text.arguments[name] = f'draw("{name}").normal({merged}, dtype={dtype}, scale={_size_of(c, x)})'
        text.letters[name] = None
        text.let(name, f"{name}.reshape{shape(laid)}")
    return laid


def _projected(text, letters, dtype):
    """q, k and v of one input by one product, cut in three."""
    text.argument("x", None, f"normal(B, Q, 12, dtype={dtype})", moving=True)
    text.argument("w", None, f"normal(12, H * (2 * D + V), dtype={dtype}, scale=0.4)", moving=True)
    text.lines.append("q, k, v = jnp.split(x @ w, [H * D, 2 * H * D], -1)")
    for x, depth in (("q", "D"), ("k", "D"), ("v", "V")):
        text.name(x)
        text.let(x, f"{x}.reshape(B, Q, H, {depth})")
    letters.update(q="bqhd", k="bkhd", v="bkhv")


def _size_of(c, x):
    if x == "v":
        return c("size of v", 1.0, 100.0, 1e-3, often=0.06)
    size = c("size of q and k", 1.0, 0.1, 3.0, 12.0, 1e-3, often=0.25)
    return size


def _rope(text, letters, dtype, batch):
    c = text.choices
    if not c.any("rope", False, False, False, False, True) or text.sizes["d"] % 2:
        return
    spelled = c.any("rope by", "concatenate", "rotate_half", "stack", "interleaved", "partial", "complex")
    rotated = c("rope on", "qk", "q", "k", often=0.2)
    along = c.any("angles along", "", "b", "b", "h", "bh")
    if "b" not in batch:
        along = along.replace("b", "")
    for x in rotated:
        if letters[x][-1] != "d":
            continue
        length = x
        axes = "".join(y for y in letters[x] if y in along) + length
        tables = c.any(f"angles of {x} are", "positions", "tables", "constants")
        if "g" in letters[x] and "h" in along:
            axes = "g" + axes
        _rotate(text, x, letters[x], axes, spelled, tables, dtype)


def _rotate(text, x, laid, axes, spelled, tables, dtype):
    c = text.choices
    half = "D // 2" if spelled != "partial" else "D // 4"
    if spelled == "partial" and text.sizes["d"] % 4:
        half, spelled = "D // 2", "concatenate"
    kind = c("type of angles", "jnp.float32", "jnp.bfloat16", often=0.1)
    if tables == "tables":
        # made of the positions by the caller
        cos, sin = (text.argument(f"{t}_{x}", None, f"normal({dims(axes)}, {half}, dtype={kind})",
                                  moving=True) for t in ("cos", "sin"))
    elif tables == "constants" and len(axes) == 1:
        text.new(f"angle_{x}", f"np.arange({SIZES[x]})[:, None] * 50.0 ** (-np.arange({half}) / ({half}))")
        cos = text.new(f"cos_{x}", f"jnp.asarray(np.cos(angle_{x}), {kind})")
        sin = text.new(f"sin_{x}", f"jnp.asarray(np.sin(angle_{x}), {kind})")
    else:
        if len(axes) == 1 and c.yes("plain positions", 0.5):
            positions = text.new(f"positions_{x}", f"jnp.arange({SIZES[x]})")
        else:
            n = dims(axes[:-1]) or "1"
            draw = f"positions(np.prod([{n}]), {SIZES[axes[-1]]}).reshape({dims(axes)})"
            positions = text.argument(f"positions_{x}", axes, draw)
        angle = text.new(f"angle_{x}", f"{positions}[..., None] * 50.0 ** (-jnp.arange({half}) / ({half}))")
        cos = text.new(f"cos_{x}", f"jnp.cos({angle}).astype({kind})")
        sin = text.new(f"sin_{x}", f"jnp.sin({angle}).astype({kind})")
    at = lambda t: aligned(t, axes + "d", laid)
    cos, sin = (text.new(f"{t}_{x}_", at(text_of)) for t, text_of in (("cos", cos), ("sin", sin)))
    lines = {
        "concatenate": [f"{x}1, {x}2 = jnp.split({x}, 2, -1)",
                        f"{x} = jnp.concatenate([{x}1 * {cos} - {x}2 * {sin}, {x}2 * {cos} + {x}1 * {sin}], -1)"],
        "rotate_half": [f"{x}1, {x}2 = {x}[..., :D // 2], {x}[..., D // 2:]",
                        f"{x} = {x} * jnp.concatenate([{cos}, {cos}], -1) + "
                        f"jnp.concatenate([-{x}2, {x}1], -1) * jnp.concatenate([{sin}, {sin}], -1)"],
        "stack": [f"{x}1, {x}2 = {x}[..., ::2], {x}[..., 1::2]",
                  f"{x} = jnp.stack([{x}1 * {cos} - {x}2 * {sin}, {x}2 * {cos} + {x}1 * {sin}], -1).reshape({x}.shape)"],
        "interleaved": [f"{x}_ = {x}.reshape(*{x}.shape[:-1], D // 2, 2)",
                        f"{x} = jnp.stack([{x}_[..., 0] * {cos} - {x}_[..., 1] * {sin}, "
                        f"{x}_[..., 1] * {cos} + {x}_[..., 0] * {sin}], -1).reshape({x}.shape)"],
        "partial": [f"{x}1, {x}2, {x}3 = {x}[..., :D // 4], {x}[..., D // 4:D // 2], {x}[..., D // 2:]",
                    f"{x} = jnp.concatenate([{x}1 * {cos} - {x}2 * {sin}, {x}2 * {cos} + {x}1 * {sin}, {x}3], -1)"],
        "complex": [f"{x}_ = lax.complex(*({x}[..., i::2].astype(jnp.float32) for i in (0, 1))) * lax.complex(*jnp.broadcast_arrays("
                    f"{cos}.astype(jnp.float32), {sin}.astype(jnp.float32)))",
                    f"{x} = jnp.stack([{x}_.real, {x}_.imag], -1).reshape({x}.shape)"],
    }
    text.lines += lines[spelled]
    if c.yes(f"{x} back in its type", 0.8):
        text.let(x, f"{x}.astype({dtype})")


def _scale_before(text):
    """Scales written on q or k; gives what is left for the scores."""
    c = text.choices
    where = c.any("scale", *["scores"] * 9, *["q"] * 6, *["k", "none", "twice", "divided"] * 3, "traced")
    if where == "q":
        text.let("q", "q * D**-0.5")
    elif where == "k":
        text.let("k", "k * 0.3")
    elif where == "twice":
        text.let("q", "q * 3.0")
    return where


def draw_scores(text, letters, scale):
    """Writes s = q k; gives its axes."""
    c = text.choices
    lead = "".join(y for y in "abhgr" if y in letters["q"] + letters["k"])
    axes = lead + "qk"
    order = c("axes of scores", "usual", "any", "keys before queries", often=0.2)
    if order == "any":
        axes = "".join(c.order("order of scores", axes))
    elif order == "keys before queries":
        axes = lead + "kq"
    first, second = ("q", "k") if not c.yes("product of k and q", 0.25) else ("k", "q")
    a, b = letters[first], letters[second]
    spelled = c("product by", "einsum", "matmul", "multiplication", often=0.4 if text.sizes["q"] > 1 else 1.0)
    wide = c("product in f32", "", ", preferred_element_type=jnp.float32", often=0.3)
    if spelled == "matmul" and axes == lead + "qk" and lead == "".join(sorted(lead, key="abhgr".index)) and \
            sorted(letters["q"][:-2]) == sorted(letters["k"][:-2]) and len(letters["q"]) == len(lead) + 2:
        q, k = transposed("q", letters["q"], lead + "qd"), transposed("k", letters["k"], lead + "kd")
        text.new("s", f"jnp.matmul({q}, jnp.swapaxes({k}, -1, -2){wide})")
    elif spelled == "multiplication":
        all_axes = axes + "d"
        text.new("s", f"({aligned(first, a, all_axes)} * {aligned(second, b, all_axes)}).sum(-1{', dtype=jnp.float32' if wide else ''})")
    else:
        text.new("s", f'jnp.einsum("{a},{b}->{axes}", {first}, {second}{wide})')
    if scale == "scores":
        text.let("s", "s * D**-0.5")
    elif scale == "twice":
        text.let("s", "s / 5.0")
    elif scale == "divided":
        text.let("s", "s / jnp.sqrt(D)" if c.yes("divided by a root", 0.5) else "s / 2.5")
    elif scale == "traced":
        along = c("traced scale along", "", "h", "b", "q", "k", often=0.4)
        along = along if along in axes else ""
        t = text.argument("temperature", along, drawn("normal", along, "scale=0.5"), moving=True)
        text.let("s", f"s * {aligned(t, along, axes)}")
    return axes
