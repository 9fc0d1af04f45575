"""Masks: by arithmetic on indices in every type, by data of every shape, combined and applied in every way."""

from text import SIZES, aligned, dims

INDEX_TYPES = ("jnp.int32", "jnp.int8", "jnp.uint8", "jnp.uint32", "jnp.int16", "jnp.float32", "jnp.bfloat16", "jnp.float16")
FILLS = ("-1e30", "-jnp.inf", "jnp.finfo(jnp.float32).min", "-1e9", "-2.38e38", "-1e4", "-100.0", "-1e10",
         "jnp.finfo(s.dtype).min", "jnp.finfo(jnp.bfloat16).min.astype(jnp.float32)", "-65504.0", "-1e38", "-3e38", "-2.0**23",
         "0.5 * jnp.finfo(s.dtype).min", "-1e6", "-30.0", "0.0")


def draw_masks(text, axes):
    """Writes up to three masks; gives (name, axes) of each, boolean."""
    c = text.choices
    count = c.any("masks", 1, 1, 1, 1, 0, 0, 2, 2, 3)
    masks = []
    for i in range(count):
        kind = c.any(f"mask {i}", "causal", "window", "padding", "data", "segments", "positions", "constant", "index")
        masks.append(KINDS[kind](text, axes, f"mask {i}"))
    return masks


def _indices(text, of, dtype=None):
    """Rows and keys as columns and rows of numbers, [q, 1] and [1, k]."""
    c = text.choices
    dtype = dtype or c(f"{of} index type", *INDEX_TYPES, often=0.3)
    by = c(f"{of} indices by", "arange", "broadcasted_iota", "cumsum", "mgrid", often=0.35)
    i, j = text.name("i"), text.name("j")
    if by == "broadcasted_iota":
        text.lines.append(f"{i}, {j} = (lax.broadcasted_iota({dtype}, (Q, K), axis) for axis in (0, 1))")
    elif by == "cumsum" and "int" in dtype:
        text.lines.append(f"{i} = jnp.cumsum(jnp.ones(Q, {dtype}))[:, None]")
        text.lines.append(f"{j} = jnp.cumsum(jnp.ones(K, {dtype}))[None]")
    elif by == "mgrid":
        text.lines.append(f"{i}, {j} = (x.astype({dtype}) for x in jnp.mgrid[:Q, :K])")
    else:
        text.lines.append(f"{i}, {j} = jnp.arange(Q, dtype={dtype})[:, None], jnp.arange(K, dtype={dtype})[None]")
    return i, j, dtype


def _offset(text, of, dtype):
    """What is added to the row: 0, the bottom right corner, or some number; an unsigned one stays 0 or more."""
    size = text.sizes
    corner = size["k"] - size["q"]
    found = text.choices(f"{of} offset", 0, corner, 1, -1, 2, -3, corner + 1, often=0.45)
    return max(found, 0) if "uint" in dtype else found


def _causal(text, axes, of):
    c = text.choices
    spelled = c(f"{of} causal by", "i >= j", "not j > i", "i - j >= 0", "i > j - 1", "tril", "tri", "constant tril", "rows in scan order",
                often=0.7)
    if spelled in ("tril", "tri", "constant tril"):
        offset = _offset(text, of, "")
        expression = {"tril": f"jnp.tril(jnp.ones((Q, K), bool), {offset})", "tri": f"jnp.tri(Q, K, {offset}, dtype=bool)",
                      "constant tril": f"jnp.asarray(np.tri(Q, K, {offset}, dtype=bool))"}[spelled]
        return text.new("seen", expression), "qk"
    i, j, dtype = _indices(text, of)
    offset = _offset(text, of, dtype)
    row = f"{i} + {offset}" if offset > 0 else f"{i} - {-offset}" if offset else i
    expression = {"i >= j": f"{row} >= {j}", "not j > i": f"~({j} > {row})", "i - j >= 0": f"{row} - {j} >= 0",
                  "i > j - 1": f"{row} > {j} - 1", "rows in scan order": f"jnp.less_equal({j}, {row})"}[spelled]
    return text.new("seen", expression), "qk"


def _window(text, axes, of):
    c = text.choices
    i, j, dtype = _indices(text, of)
    w = c.size(f"{of} width", 1, 2, 3, 4, 8)
    shift = _offset(text, of, dtype)
    row = f"({i} + {shift})" if shift > 0 else f"({i} - {-shift})" if shift else i
    expression = c(f"{of} window by", f"({row} >= {j}) & ({row} - {j} < {w})", f"jnp.abs({row} - {j}) < {w}",
                   f"({row} - {j}).astype(jnp.uint32) < {w}", f"({row} - {j}).astype(jnp.uint8) < {w}", f"{row} - {j} < {w}",
                   f"{j} - {row} < {w}", f"({j} >= {row} - {w}) & ({j} <= {row} + 1)", f"({j} > {row} - {w})",
                   f"{i} // {w} == {j} // {w}", f"{i} // {w} >= {j} // {w}", f"({row} - {j}) % {w} == 0",
                   f"({row} - {j}) * ({row} - {j}) < {w * w}", f"({i} * 64 >= {j} * 64)", f"({i} + 250 >= {j} + 250)",
                   f"lax.shift_right_logical({i}.astype(jnp.int32), 1) >= lax.shift_right_logical({j}.astype(jnp.int32), 1)",
                   f"({i} * 0.5).astype(jnp.int32) >= ({j} * 0.5).astype(jnp.int32)",
                   f"({row} - {j}).astype(jnp.int8) >= 0", f"jnp.clip({row} - {j}, -3, 3) >= 0",
                   f"({row} >= {j}) | ({j} < {w})", f"({row} >= {j}) ^ ({j} == {w})", f"({i} ^ {j}) < {w}"
                   if "int" in dtype else f"{row} >= {j}", often=0.85)
    return text.new("seen", expression), "qk"


def _padding(text, axes, of):
    c = text.choices
    side = c(f"{of} padding of", "k", "q", often=0.12)
    size = SIZES[side]
    if "b" not in axes:
        return _data(text, axes, of)
    kind = c(f"{of} padding by", "lengths", "start", "bool", "int", "float", "tokens", "tokens left", often=0.75)
    letters = "b" + side
    index_type = c(f"{of} length type", "jnp.int32", "jnp.uint8", "jnp.int8", "jnp.float32", often=0.2)
    if kind in ("lengths", "start"):
        lengths = text.argument("lengths", "b", f"lengths(B, {size}, dtype={index_type})")
        at = f"jnp.arange({size}, dtype={index_type})[None]"
        spelled = c(f"{of} compared", f"{at} < {lengths}[:, None]", f"{lengths}[:, None] > {at}", f"{at} - {lengths}[:, None] < 0",
                    f"{at} <= {lengths}[:, None] - 1", f"~({at} >= {lengths}[:, None])", often=0.6)
        expression = spelled if kind == "lengths" else f"{at} >= {lengths}[:, None]"
    elif kind == "bool":
        return text.argument("padding", letters, f"chance(0.6, B, {size}, hidden=\"{_hidden(c, of)}\")"), letters
    elif kind in ("int", "float"):
        dtype = c(f"{of} padding type", "jnp.int32", "jnp.uint8", "jnp.int8", often=0.5) if kind == "int" else "jnp.float32"
        x = text.argument("padding", letters, f"chance(0.6, B, {size}, hidden=\"{_hidden(c, of)}\").astype({dtype})")
        expression = c(f"{of} padding test", f"{x} != 0", f"{x} > 0", f"{x} == 1", f"{x}.astype(bool)", f"(1 - {x}) == 0",
                       f"{x} - 1 >= 0", often=0.7)
    else:
        x = text.argument("tokens", letters, f'tokens(B, {size}, "{"left" if kind == "tokens left" else "right"}")')
        expression = c(f"{of} tokens test", f"{x} != 0", f"{x} > 0", f"jnp.cumsum({x} != 0, -1) > 0", often=0.4)
    return text.new("seen", expression), letters


def _hidden(c, of):
    return c(f"{of} hidden", "", "first", "last", "first last", often=0.5)


def _data(text, axes, of):
    c = text.choices
    letters = "".join(x for x in axes if c.yes(f"{of} along {x}", 0.9 if x in "k" else 0.75 if x == "q" else 0.45)) or "k"
    letters = letters if letters in axes or set(letters) <= set(axes) else axes[-1]
    if c.yes(f"{of} in another order", 0.15):
        letters = "".join(c.order(f"{of} order", letters))
    share = c(f"{of} share", 0.7, 0.3, 0.95, often=0.5)
    dtype = c(f"{of} type", "bool", "jnp.int32", "jnp.float32", "jnp.uint8", often=0.25)
    hidden = c(f"{of} hidden", "", "first", "last", "first last", often=0.35)
    x = text.argument("mask", letters, f'chance({share}, {dims(letters)}, hidden="{hidden}").astype({dtype})')
    if dtype == "bool":
        return x, letters
    return text.new("seen", c(f"{of} test", f"{x} != 0", f"{x} > 0", f"{x}.astype(bool)", often=0.5)), letters


def _segments(text, axes, of):
    if "b" not in axes:
        return _data(text, axes, of)
    dtype = text.choices(f"{of} segment type", "jnp.int32", "jnp.uint8", "jnp.int8", "jnp.float32", often=0.2)
    rows = text.argument("row_segments", "bq", f"segments(B, Q, dtype={dtype})")
    keys = rows if text.sizes["q"] == text.sizes["k"] and text.choices.yes(f"{of} same segments", 0.6) else \
        text.argument("key_segments", "bk", f"segments(B, K, dtype={dtype})")
    test = text.choices(f"{of} segments test", "==", ">=", often=0.15)
    return text.new("seen", f"{rows}[:, :, None] {test} {keys}[:, None]"), "bqk"


def _positions(text, axes, of):
    """Causal by positions that differ between entries."""
    if "b" not in axes:
        return _causal(text, axes, of)
    c = text.choices
    rows = text.argument("row_positions", "bq", "positions(B, Q)")
    keys = text.argument("key_positions", "bk", "positions(B, K)") if c.yes(f"{of} of keys too", 0.6) else None
    key = f"{keys}[:, None]" if keys else "jnp.arange(K)[None, None]"
    return text.new("seen", f"{rows}[:, :, None] >= {key}"), "bqk"


def _constant(text, axes, of):
    letters = text.choices(f"{of} constant along", "qk", "k", *(["hqk"] if "h" in axes else []), *(["bk", "bqk"] if "b" in axes else []),
                           often=0.6)
    return text.constant("mask", f'chance(0.7, {dims(letters)}, hidden="{_hidden(text.choices, of)}")'), letters


def _index(text, axes, of):
    """Of rows or keys alone, by their number."""
    c = text.choices
    side = c(f"{of} of", "k", "q", often=0.3)
    at = f"jnp.arange({SIZES[side]})"
    n = c.size(f"{of} number", 1, 2, 3, 5)
    return text.new("seen", c(f"{of} index by", f"{at} < {n}", f"{at} >= {n}", f"{at} != {n}", f"{at} % 2 == 0",
                              f"{at} > {SIZES[side]}", f"{at} * {at} < 20", often=0.8)), side


KINDS = {"causal": _causal, "window": _window, "padding": _padding, "data": _data, "segments": _segments,
         "positions": _positions, "constant": _constant, "index": _index}


def _union(axes, masks):
    return "".join(x for x in axes if any(x in letters for _, letters in masks))


def combined(text, axes, masks):
    """The masks as one, where the program makes one of them."""
    c = text.choices
    if len(masks) < 2 or c.yes("masks apart", 0.3):
        return masks
    letters = _union(axes, masks)
    parts = [aligned(x, of, letters) for x, of in masks]
    by = c("combined by", "&", "|", "logical_and", "minimum", "product", "not or", "where", "xor", "mixed", often=0.6)
    if by in ("&", "|"):
        whole = f" {by} ".join(parts)
    elif by == "logical_and":
        whole = parts[0]
        for x in parts[1:]:
            whole = f"jnp.logical_and({whole}, {x})"
    elif by == "minimum":
        whole = f"{parts[0]}.astype(jnp.int32)"
        for x in parts[1:]:
            whole = f"jnp.minimum({whole}, {x}.astype(jnp.int32))"
        whole = f"({whole}) != 0"
    elif by == "product":
        whole = "(" + " * ".join(f"{x}.astype(jnp.float32)" for x in parts) + ") > 0"
    elif by == "not or":
        whole = "~(" + " | ".join(f"~{x}" for x in parts) + ")"
    elif by == "where":
        whole = f"jnp.where({parts[0]}, {parts[1]}, False)"
    elif by == "xor":
        whole = f"{parts[0]} ^ {parts[1]}"
    else:
        whole = f"{parts[0]} & ~{parts[1]}" + "".join(f" | {x}" for x in parts[2:])
    return [(text.new("seen", whole), letters)]


def apply_masks(text, axes, masks):
    """Writes the masks into s; gives what was applied, for programs that mask the weights too."""
    c = text.choices
    fill = c("fill", *FILLS, often=0.65) if not c.yes("usual fill", 0.6) else c("fill of those", *FILLS[:5], often=0.8)
    for n, (x, letters) in enumerate(masks):
        m = aligned(x, letters, axes)
        if n and c.yes("other fill", 0.4):
            fill = c("second fill", *FILLS, often=0.8)
        by = c(f"applied {n} by" if n else "applied by", "where", "added where", "added product", "subtracted", "twice", "multiplied",
               "minimum", "lifted", "bias argument", "integers", "where=", often=0.5)
        number = f"{m}.astype(s.dtype)"
        if by == "where":
            text.let("s", f"jnp.where({m}, s, {fill})")
        elif by == "added where":
            text.let("s", f"s + jnp.where({m}, 0.0, {fill})" + c("sum in", "", ".astype(s.dtype)", often=0.3))
        elif by == "added product":
            text.let("s", f"s + (1.0 - {number}) * {_finite(fill)}")
        elif by == "subtracted":
            text.let("s", f"s - 1e30 * (1 - {number})" if c.yes("large", 0.6) else f"s - 1e9 * (1 - {number})")
        elif by == "twice":
            text.let("s", f"jnp.where({m}, s, {fill})")
            text.let("s", f"jnp.where({m}, s, {c('fill again', *FILLS, often=0.7)})")
        elif by == "multiplied":
            text.let("s", f"s * {number} + (1 - {number}) * {_finite(fill)}")
        elif by == "minimum":
            text.let("s", f"jnp.minimum(s, jnp.where({m}, jnp.inf, {fill}).astype(s.dtype))")
        elif by == "lifted":
            text.let("s", f"s + {number} * {c('lift', '1e9', '4e9', '1e4', '1e30', '1e38', '2e7', often=0.8)}")
        elif by == "integers":
            text.let("s", f"s + ({m}.astype({c('mask type', 'jnp.int32', 'jnp.int8', 'jnp.uint8', often=0.6)}) - 1)"
                          f".astype(s.dtype) * {c('times', '1e9', '1e30', 'jnp.finfo(s.dtype).max', '100.0', often=0.7)}")
        elif by == "bias argument":
            order = "".join(y for y in axes if c.yes(f"added along {y}", 0.5)) or axes[-1]
            fill_here = fill.replace("s.dtype", "jnp.float32")
            value = text.argument("padding_bias", order,
                                  f'chance(0.3, {dims(order)}) * np.float32({fill_here})')
            text.arguments[value] = f'np.where(draw("{value}").chance(0.3, {dims(order)}), {fill_here}, 0).astype(np.float32)'
            text.let("s", f"jnp.where({m}, s, {fill})")
            text.let("s", f"s + {aligned(value, order, axes)}")
        else:
            masks[n] = (x, letters)
            return m, "where="
    if masks:
        x, letters = masks[-1]
        return aligned(x, letters, axes), "applied"
    return None, "none"


def _finite(fill):
    return "-1e9" if fill == "-jnp.inf" else fill
