"""What is around attention: gradients, loops, maps, branches, calls; and what is fused of it."""

LOSSES = ("jnp.sum({o} * weight({o}))", "jnp.sum({o})", "jnp.mean({o} ** 2)", "jnp.sum(jnp.sin({o}))", "jnp.mean({o})",
          "jnp.sum({o} * jnp.atleast_1d(weight({o}))[..., :1])", "jnp.sum({o} * jnp.atleast_1d(weight({o}))[:1])")


def program_lines(text, several):
    """The lines of `program(fuse)` around `attend` of the text's arguments, the name of what they end in, and whether
    something inside is fused; `several`: attend gives more than its output."""
    c = text.choices
    names = list(text.arguments)
    everything = ", ".join(names)
    lines, function = [], "attend"

    def define(name, signature, *body):
        nonlocal function
        lines.append(f"def {name}({signature}):")
        lines.extend("    " + line for line in body)
        function = name

    call = lambda f, **changed: f"{f}({', '.join(changed.get(x, x) for x in own)})"
    own = list(names)
    shared = c.any("around", *[""] * 8, "jit", "checkpoint", "policy", "vmap", "two", "scan", "fori", "while", "map", "shard_map", "beside",
               "three in a row", "scan of arguments", *["vmap", "two", "scan", "jit", "checkpoint"], "cond")
    inner = c("fused", "whole", "attend", "gradient of fused", often=0.18)
    if inner == "attend":
        lines.append("attend_fused = fuse(attend)")
        function = "attend_fused"
    if shared == "jit":
        lines.append(f"jitted = jax.jit({function})")
        function = "jitted"
    elif shared in ("checkpoint", "policy"):
        policy = c("policy", "", "policy=jax.checkpoint_policies.dots_saveable", "policy=jax.checkpoint_policies.everything_saveable",
                   "policy=jax.checkpoint_policies.nothing_saveable", "policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable",
                   often=0.9 if shared == "policy" else 0.0)
        lines.append(f"remembered = jax.checkpoint({function}{', ' + policy if policy else ''})")
        function = "remembered"
    elif shared == "vmap":
        mapped = [x for x in names if c.yes(f"mapped {x}", 0.6)] or names[:1]
        for x in mapped:
            _lead(text, x, 2)
        axes = "(" + ", ".join("0" if x in mapped else "None" for x in names) + ",)"
        lines.append(f"mapped = jax.vmap({function}, {axes})")
        function = "mapped"
    elif shared == "cond":
        flag = text.argument("flag", None, "chance(0.7)")
        names.append(flag)
        define("branched", f"{everything}, {flag}", f"return lax.cond({flag}, {function}, lambda *x: jax.tree.map(jnp.zeros_like, "
               f"jax.eval_shape({function}, *x)), {everything})")
    elif shared == "two":
        changed = c("second with", "q", "v", "k", often=0.5)
        if changed in names:
            other = c("second differs by", "halved", "of its own", "negated", often=0.6)
            if other == "of its own":
                more = text.name(f"{changed}_of_second")
                text.arguments[more] = text.arguments[changed].replace(f'draw("{changed}")', f'draw("{more}")')
                text.letters[more] = text.letters.get(changed)
                names.append(more)
                define("both", ", ".join(names), f"return {call(function)}, {call(function, **{changed: more})}")
            else:
                value = f"{changed} * 0.5" if other == "halved" else f"-{changed}"
                define("both", everything, f"return {call(function)}, {call(function, **{changed: value})}")
    elif shared in ("scan", "fori", "while", "three in a row") and "q" in names and not several:
        n = c.size("steps", 2, 3, 1)
        step = f"x + 0.1 * mixed({call(function, q='x')}, x)"
        if shared == "three in a row":
            define("layers", everything, "x = q", *[f"x = {step}"] * 3, "return x")
        elif shared == "scan":
            remember = c("step", "", "checkpoint", often=0.4)
            kept = c("kept of steps", "None", "x.sum()", "x", often=0.3)
            body = f"def layer(x, w):"
            define("layers", everything, body, f"    x = x * w", f"    return {step}, {kept}",
                   *(["layer = jax.checkpoint(layer)"] if remember else []),
                   f"return lax.scan(layer, q, (1 + jnp.arange({n}) * 0.1).astype(q.dtype)"
                   f"{c('scan', '', ', reverse=True', ', unroll=2', often=0.3)})" + ("[0]" if kept == "None" else ""))
        elif shared == "fori":
            define("layers", everything, f"return lax.fori_loop(0, {n}, lambda i, x: {step}, q)")
        else:
            define("layers", everything, f"return lax.while_loop(lambda state: state[0] < {n}, lambda state: (state[0] + 1, "
                   f"(lambda x: {step})(state[1])), (0, q))[1]")
    elif shared in ("scan of arguments", "map"):
        mapped = [x for x in names if c.yes(f"mapped {x}", 0.5)] or names[:1]
        for x in mapped:
            _lead(text, x, 2)
        inside = "(" + ", ".join(mapped) + ",)"
        if shared == "map":
            define("mapped", everything, f"return lax.map(lambda _: (lambda {', '.join(mapped)}: {call(function)})(*_), {inside})")
        else:
            define("mapped", everything, f"def step(total, _):", f"    {', '.join(mapped)}, = _",
                   f"    o = {call(function)}", "    return total + sum(jnp.sum(x.astype(jnp.float32)) for x in jax.tree.leaves(o)), o",
                   f"return lax.scan(step, jnp.float32(0), {inside})")
    elif shared == "shard_map":
        lines.append(f"sharded = jax.shard_map({function}, mesh=Mesh(np.array(jax.devices()[:1]), ('x',)), "
                     f"in_specs=({'P(), ' * len(names)}), out_specs=P(), check_vma=False)")
        function = "sharded"
    elif shared == "beside":
        a = text.argument("beside", None, "normal(4, 6)")
        names.append(a)
        beside = c("beside it", f"jnp.sort({a}), jnp.sort({a}, descending=True)", f"jnp.cumsum({a}, 1), lax.cumsum({a}, 1, reverse=True)",
                   f"jnp.abs(jnp.fft.fft({a})), jnp.abs(jnp.fft.ifft({a}))", f"jnp.argmax({a}, 1), jnp.argmin({a}, 1)",
                   f"lax.cummax({a}, 1), lax.cummin({a}, 1)", f"jnp.linalg.cholesky({a} @ {a}.T + 9 * jnp.eye(4)), jnp.linalg.inv({a}[:, :4])",
                   f"lax.reduce_window({a}, 0.0, lax.add, (1, 3), (1, 1), 'SAME'), lax.reduce_window({a}, 0.0, lax.add, (1, 3), (1, 2), 'SAME')",
                   f"lax.conv({a}[None, None], {a}[None, None, :2, :2], (1, 1), 'SAME'), lax.conv({a}[None, None], {a}[None, None, :2, :2], (2, 1), 'SAME')",
                   f"lax.top_k({a}, 2), lax.top_k({a}, 3)", f"jnp.floor({a}), jnp.ceil({a}), jnp.round({a})",
                   f"{a}[jnp.array([1, 9, 2])], {a}.at[jnp.array([1, 9])].get(mode='fill')",
                   f"lax.rem({a}, 1.0 + {a}[::-1] ** 2), jnp.mod({a}, 1.0 + {a}[::-1] ** 2)",
                   f"lax.dot(({a} * 9).astype(jnp.int8), ({a} * 9).astype(jnp.int8).T, preferred_element_type=jnp.int32)", often=0.9)
        define("with_more", f"{everything}, {a}", f"return {call(function)}, ({beside})")
    names = list(text.arguments)
    everything = ", ".join(names)
    moving = [x for x in text.moving if x in names]
    what = c.any("asked for", *["forward"] * 8, *["gradient"] * 9, *["value and gradient", "vjp"] * 3, "jvp", "second derivative")
    if shared == "while" and what != "forward":
        what = "forward"
    if what == "forward":
        define("whole", everything, f"return {function}({everything})")
        return lines, function, inner == "attend"
    if inner == "gradient of fused":
        lines.append(f"fused_inside = fuse({function})")
        function = "fused_inside"
    chosen = [x for x in moving if c.yes(f"derivative by {x}", 0.65)] or moving[:1] or names[:1]
    loss = c("loss", *LOSSES, often=0.5).format(o="o.astype(jnp.float32)").replace("weight(o.astype(jnp.float32))", "weights_of(o.shape)")
    of = ", ".join(chosen)
    define("loss", of, f"return sum(({loss}) for o in jax.tree.leaves({function}({everything})) if jnp.issubdtype(o.dtype, jnp.inexact))")
    body, last = lines[-2:], "loss"
    del lines[-2:]
    positions = "(" + "".join(f"{i}, " for i in range(len(chosen))) + ")"
    result = {"gradient": f"jax.grad(loss, {positions})({of})", "value and gradient": f"jax.value_and_grad(loss, {positions})({of})",
              "vjp": f"jax.vjp(loss, {of})[1](jnp.float32(0.75))", "jvp": f"jax.jvp(loss, ({of},), ({of},))",
              "second derivative": f"jax.grad(lambda *x: sum(jnp.sum(g * g) for g in jax.grad(loss, {positions})(*x)))({of})"}[what]
    define("whole", everything, *body, f"return {result}")
    return lines, function, inner != "whole"


def _lead(text, x, n):
    """Another leading dim of size n for an argument."""
    draw = text.arguments[x]
    stem = f'draw("{x}")'
    text.arguments[x] = f"np.stack([{draw.replace(stem, f'''draw('{x} {{i}}')''')} for i in range({n})])".replace(
        f"draw('{x} {{i}}')", f"draw(f'{x} {{i}}')")
