"""From scores to the output: sinks, the softmax in its spellings, dropout, the product with the values."""

from text import aligned, dims, shape, transposed


def draw_weights(text, axes, mask, applied, letters, dtype):
    """Writes o from s; gives what the function returns."""
    c = text.choices
    at = axes.index("k") - len(axes)
    wide = c("softmax in", "", "jnp.float32", "jnp.bfloat16", often=0.35)
    if wide:
        text.let("s", f"s.astype({wide})")
    rounded = c("scores rounded to", "", "jnp.float8_e5m2", "jnp.int32", "jnp.bfloat16", "jnp.float16", often=0.05)
    if rounded:
        text.let("s", f"s.astype({rounded}).astype(jnp.float32)")
    sink = _sink(text, axes, at)
    over = at
    if c.yes("normalised over another axis", 0.02):
        over = axes.index("q") - len(axes)
    late = _softmax(text, over, mask, applied, sink)
    if isinstance(sink, list):
        before = sink == ["before"]
        cut = "1, K + 1" if before else "0, K"
        if c.yes("sink not cut exactly", 0.03):
            cut = "0, K" if before else "1, K + 1"
        text.let("p", f"lax.slice_in_dim(p, {cut}, axis={axes.index('k')})")
    if applied in ("applied", "where=") and c.yes("masked again", 0.15):
        text.let("p", c("masked again by", f"jnp.where({mask}, p, 0.0)", f"p * {mask}", f"p * {mask}.astype(p.dtype)",
                        f"p / {mask}", f"p / (2.0 - {mask})", f"jnp.where({mask}, p, 0.5)", often=0.6))
    _dropout(text, axes)
    narrow = c("weights in", "", dtype, "jnp.bfloat16", "jnp.float8_e4m3fn", "jnp.float16", "jnp.int32", often=0.25)
    if narrow:
        back = ".astype(jnp.float32)" if "8" in narrow or "int" in narrow or c.yes("and back", 0.3) else ""
        text.let("p", f"p.astype({narrow}){back}")
    extra = c("weights also", "", "returned", "summed", "largest", "scores summed", often=0.05)
    if extra:
        text.new("extra", {"returned": "p", "summed": "p.sum()", "largest": f"p.max({at})", "scores summed":
                           "jnp.where(jnp.abs(s) < 1e4, s, 0.0).sum()"}[extra])
    o = _product(text, axes, letters)
    if late:
        l_axes = "".join(x for x in axes if x != "k")
        order = "".join(x for x in o if x in l_axes)
        total = f"jnp.squeeze(l, {at})"
        text.let("o", f"o / {aligned(total, l_axes, o)}" if set(l_axes) <= set(o) and order else "o")
    if c.yes("output in another type", 0.1):
        text.let("o", f"o.astype({c('output type', 'jnp.float32', 'jnp.bfloat16', 'jnp.float16', often=0.6)})")
    return "o, extra" if extra else "o"


def flash(axes, letters):
    """The lines of `attend` with a backward by hand, of a function `scores`; none where its axes do not allow it."""
    v, at = letters["v"], axes.index("k") - len(axes)
    lead = [x for x in "abhgr" if x in axes + v]
    o = "".join([*(x for x in lead if x in "ab"), "q", *(x for x in lead if x in "hgr"), "v"])
    rows = o[:-1]
    delta = "jnp.sum(o.astype(jnp.float32) * d_o, -1)"
    if not set(rows) <= set(axes):
        return []
    return [
        "@jax.custom_vjp", "def attend(*x):", "    return attend_forward(*x)[0]", "", "",
        "def attend_forward(*x):", "    s, v = scores(*x)", f"    lse = jax.nn.logsumexp(s, {at}, keepdims=True)",
        f'    o = jnp.einsum("{axes},{v}->{o}", jnp.exp(s - lse), v)', "    return o, (x, o, lse)", "", "",
        "def attend_backward(kept, d_o):", "    x, o, lse = kept", "    (s, v), back = jax.vjp(scores, *x)", "    p = jnp.exp(s - lse)",
        f"    delta = {delta}", f'    d_p = jnp.einsum("{o},{v}->{_over(axes, o, v)}", d_o, v)',
        f"    d_s = p * ({aligned('d_p', _over(axes, o, v), axes)} - {aligned('delta', rows, axes)})",
        f'    d_v = jnp.einsum("{axes},{o}->{v}", p, d_o)', "    return back((d_s.astype(s.dtype), d_v.astype(v.dtype)))", "", "",
        "attend.defvjp(attend_forward, attend_backward)", "", ""]


def _over(axes, o, v):
    """The axes that dP has."""
    return "".join(x for x in axes if x in o + v)


def _sink(text, axes, at):
    """A column beside the scores, or a term of the sum; gives how."""
    c = text.choices
    if not c.any("sink", *[False] * 10, True):
        return None
    along = c("sink along", "h" if "h" in axes else "g" if "g" in axes else "", "", "hq", "b", often=0.35)
    along = "".join(x for x in axes if x in along)
    if along:
        value = text.argument("sink", along, f"normal({dims(along)})", moving=True)
        if c.yes("some sinks are -inf", 0.12):
            text.arguments[value] = f'np.where(draw("{value}").chance(0.5, {dims(along)}), -np.inf, ' \
                                    f'draw("{value}").normal({dims(along)})).astype(np.float32)'
    else:
        value = c("sink is", "0.0", "-jnp.inf", "-1e30", "2.0", "20.0", often=0.7)
    term = aligned(value, along, axes) if along else value
    if c.yes("sink in the sum", 0.35):
        return f"jnp.asarray({term})"
    column = "jnp.broadcast_to(jnp.asarray(%s, s.dtype), %s)" % (
        term, "(" + ", ".join("1" if x == "k" else shape(x)[1:-2] for x in axes) + ",)")
    text.lines.append(f"column = {column}")
    before = c.yes("sink before", 0.25)
    text.let("s", f"jnp.concatenate([column, s], {at})" if before else f"jnp.concatenate([s, column], {at})")
    return ["before" if before else "after"]


def _softmax(text, at, mask, applied, sink):
    """Writes p; true if its sum is left for the output."""
    c = text.choices
    column = isinstance(sink, list)
    term = sink if isinstance(sink, str) else None
    spelled = c("softmax by", "jax.nn", "hand", "unshifted", "log", "logsumexp", "reciprocal", "late", "log2", "masked sum",
                "sum in f32", "with an epsilon", "maximum with gradient", "fixed shift", "sigmoid", "relu", "no sum", "twice", often=0.55)
    if spelled in ("sigmoid", "relu", "no sum", "twice", "with an epsilon") and not c.yes("lookalike", 0.2):
        spelled = "hand"
    if term and spelled not in ("hand", "reciprocal"):
        spelled = "hand"
    if applied == "where=":
        spelled = "where"
    if column and spelled in ("late", "masked sum"):
        spelled = "hand"
    if not mask and spelled == "masked sum":
        spelled = "hand"
    e, total = f"jnp.exp(s - m)", f"e.sum({at}, keepdims=True)"
    top = f"lax.stop_gradient(s.max({at}, keepdims=True))"
    late = False
    if spelled == "where":
        text.new("p", f"jax.nn.softmax(s, axis={at}, where={mask})")
    elif spelled == "jax.nn":
        text.new("p", f"jax.nn.softmax(s, axis={at})")
    elif spelled == "log":
        text.new("p", f"jnp.exp(jax.nn.log_softmax(s, axis={at}))")
    elif spelled == "logsumexp":
        text.new("p", f"jnp.exp(s - jax.nn.logsumexp(s, axis={at}, keepdims=True))")
    elif spelled == "sigmoid":
        text.new("p", "jax.nn.sigmoid(s)")
    elif spelled == "relu":
        text.new("p", f"jax.nn.relu(s) / (jax.nn.relu(s).sum({at}, keepdims=True) + 1)")
    elif spelled == "no sum":
        text.new("p", "jnp.exp(jnp.minimum(s, 5.0))")
    elif spelled == "twice":
        text.new("p", f"jax.nn.softmax(jax.nn.softmax(s, axis={at}), axis={at})")
    else:
        if spelled == "unshifted":
            text.new("e", "jnp.exp(s)")
        elif spelled == "log2":
            text.new("m", top)
            text.new("e", "jnp.exp2((s - m) * 1.4426950408889634)")
        else:
            shift = {"maximum with gradient": f"s.max({at}, keepdims=True)", "fixed shift": "1.5"}.get(spelled, top)
            if term:
                shift = f"lax.stop_gradient(jnp.maximum(s.max({at}, keepdims=True), {term}))"
            text.new("m", shift)
            _stand_in(text)
            text.new("e", e)
        if spelled == "masked sum":
            text.let("e", f"jnp.where({mask}, e, 0.0)")
        if spelled == "sum in f32":
            total = f"e.astype(jnp.float32).sum({at}, keepdims=True).astype(e.dtype)"
        if term:
            total += f" + jnp.exp({term} - m)"
        if spelled == "with an epsilon":
            total += " + " + c("epsilon", "1e-6", "1.0", "1e-3", often=0.6)
        text.new("l", total)
        guarded = _guard(text)
        if spelled == "late":
            text.new("p", "e")
            late = True
        elif spelled == "reciprocal":
            text.new("p", "e * (1 / l)")
        else:
            text.new("p", "e / l")
        if guarded and c.yes("weights of guarded rows", 0.25):
            text.let("p", c("weights of no sum", "jnp.where(l == 0, 0.0, p)", "jnp.where(l > 0, p, 0.0)", "jnp.where(l == 0, 1.0, p)",
                            "jnp.where(unguarded == 0, 0.25, p)", "jnp.where(unguarded > 0, p, 0.0)", often=0.9))
    return late


def _stand_in(text):
    """What a maximum is of rows that see no key."""
    of_none = text.choices("maximum of no key", "", "jnp.where(jnp.isfinite(m), m, 0.0)", "jnp.where(m == -jnp.inf, 0.0, m)",
                           "jnp.where(m > -jnp.inf, m, 3.0)", "jnp.where(jnp.isinf(m), 0.0, m)", "jnp.maximum(m, jnp.finfo(m.dtype).min)",
                           "jnp.maximum(m, -1e9)", "jnp.where(m < -1e8, 0.0, m)", "jnp.maximum(m, 0.0)", "jnp.where(m > 1, 1.0, m)",
                           often=0.5)
    if of_none:
        text.let("m", of_none)


def _guard(text):
    """Keeps l from being 0, or changes it; whether it does."""
    guard = text.choices("sum guarded by", "", "jnp.where(l == 0, 1.0, l)", "jnp.where(l > 0, l, 1.0)", "jnp.maximum(l, 1e-9)", "l + 1e-10",
                         "l + 1e-3", "jnp.where(l <= 0, 0.5, l)", "jnp.maximum(l, 0.5)", "jnp.maximum(l, 1.0)", "jnp.maximum(l, 2.0)",
                         "jnp.where(l == 1, 2.0, l)", "jnp.where(l < 2, 2.0, l)", often=0.4)
    if guard:
        text.new("unguarded", "l")
        text.let("l", guard)
    return bool(guard)


def _dropout(text, axes):
    c = text.choices
    if not c.any("dropout", *[False] * 7, True):
        return
    keep = c("kept share", 0.75, 0.5, 0.9, often=0.5)
    sizes = c("dropout along", axes, *(axes.replace(x, "1") for x in axes if x != "k"), axes.replace("q", "1").replace("h", "1"), often=0.7)
    dims_ = "(" + ", ".join("1" if x == "1" else shape(x)[1:-2] for x in sizes) + ",)"
    kind = c.any("dropout by", "bernoulli", "bernoulli", "mask argument", "uniform", "not below", "float mask", "split", "fold in")
    if kind in ("mask argument", "float mask"):
        keeps = text.argument("keep", None, f"chance({keep}, *{dims_}){'.astype(np.float32)' if kind == 'float mask' else ''}")
    else:
        key = text.argument("key", None, "key()")
        made = f"jax.random.wrap_key_data({key})"
        made = {"split": f"jax.random.split({made})[1]", "fold in": f"jax.random.fold_in({made}, 3)"}.get(kind, made)
        compared = {"uniform": "<", "not below": ">="}.get(kind)
        keeps = text.new("keep", f"jax.random.uniform({made}, {dims_}) {compared} {keep}" if compared else
                         f"jax.random.bernoulli({made}, {keep}, {dims_})")
    if kind == "float mask":
        text.let("p", f"p * {keeps} / {keep}")
    else:
        text.let("p", c("dropped by", f"jnp.where({keeps}, p / {keep}, 0.0)", f"p * {keeps} / {keep}", f"jnp.where({keeps}, p, 0.0) * {1 / keep}",
                        f"p * ({keeps}.astype(p.dtype) / {keep})", f"jnp.where({keeps}, p, 0.0)", f"p * ({keeps} * 2.0)", f"p * ({keeps} + 0.5)",
                        f"jnp.where({keeps}, 0.0, p / {keep})", f"p * ~{keeps}", f"p * (1 - {keeps})", f"p * (1.5 - {keeps})",
                        f"p * (np.uint8(1) - {keeps}.astype(jnp.uint8)).astype(p.dtype)", often=0.5))


def _product(text, axes, letters):
    c = text.choices
    v = letters["v"]
    lead = [x for x in "abhgr" if x in axes + v]
    out = c("axes of output", "length first", "heads first", "any", often=0.4)
    heads = [x for x in lead if x in "hgr"]
    batch = [x for x in lead if x in "ab"]
    order = [*batch, "q", *heads, "v"] if out == "length first" else [*lead, "q", "v"]
    if out == "any":
        order = c.order("order of output", order)
    o = "".join(order)
    pair = [("p", axes), ("v", v)]
    if c.yes("product of v and p", 0.25):
        pair.reverse()
    wide = c("output in f32", "", ", preferred_element_type=jnp.float32", often=0.15)
    if c("product with values by", "einsum", "multiplication", often=0.2 if text.sizes["q"] > 1 else 0.7) == "multiplication":
        all_axes = o + "k"
        text.new("o", f"({aligned(pair[0][0], pair[0][1], all_axes)} * {aligned(pair[1][0], pair[1][1], all_axes)})"
                      f".sum(-1{', dtype=jnp.float32' if wide else ''})")
    else:
        text.new("o", f'jnp.einsum("{pair[0][1]},{pair[1][1]}->{o}", {pair[0][0]}, {pair[1][0]}{wide})')
    if "gr" in o and c.yes("heads merged", 0.6):
        merged = o.replace("gr", "h")
        text.let("o", f"o.reshape{shape(merged)}")
        return merged
    return o
