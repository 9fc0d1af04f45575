"""Tables and plots of what bench/jax/run.py measured."""

NAMES = {"plain": "XLA", "enabled": "XLA, enable()", "op": "heddle.jax", "cudnn": "cuDNN"}
COLORS = {"plain": "#4393c3", "enabled": "#1b7837", "op": "#7fbf7b", "cudnn": "#e08214"}


def _flops(cell):
    forward = 2 * cell["batch"] * cell["heads"] * cell["sequence"] ** 2 * cell["head_dim"]
    return forward * (3.5 if cell["backward"] else 1)


def _label(cell):
    return (f"b{cell['batch']} s{cell['sequence']} h{cell['heads']} d{cell['head_dim']}, "
            f"{'forward+backward' if cell['backward'] else 'forward'}")


def _ratio(results, slow, fast):
    """How many times as fast as `slow` `fast` is; "-" where one of them was not measured."""
    times = [results.get(name, {}).get("seconds") for name in (slow, fast)]
    return "-" if None in times else f"{times[0] / times[1]:.2f}"


def _milliseconds(results, name):
    result = results.get(name, {})
    return f"{result['seconds'] * 1e3:.3f}" if "seconds" in result else "failed" if "error" in result else "-"


def _mebibytes(results, name):
    return f"{results[name]['temporary_bytes'] / 2**20:.0f}" if "temporary_bytes" in results.get(name, {}) else "-"


def _errors(results, where):
    return "".join(f"\n{where}, {name}: {result['error']}\n" for name, result in results.items() if "error" in result)


def tables(result):
    """Markdown."""
    machine = result["machine"]
    text = f"{machine['gpu']}, JAX {machine['jax']}, Heddle {machine['heddle']}. Medians; memory is temporary, in MiB.\n"
    errors = ""
    if "attention" in result:
        text += ("\n**Attention**, causal, bfloat16; times in ms\n\n| shape | XLA | enable() | heddle.jax | cuDNN | "
                 "enable() / XLA | enable() / cuDNN | TFLOP/s | MiB, XLA | MiB, enable() |\n" + "|---" + "|--:" * 9 + "|\n")
        for row in result["attention"]:
            r, cell = row["results"], row["cell"]
            rate = f"{_flops(cell) / r['enabled']['seconds'] / 1e12:.0f}" if "seconds" in r["enabled"] else "-"
            text += (f"| {_label(cell)} | {' | '.join(_milliseconds(r, name) for name in NAMES)} | "
                     f"{_ratio(r, 'plain', 'enabled')} | {_ratio(r, 'cudnn', 'enabled')} | {rate} | "
                     f"{_mebibytes(r, 'plain')} | {_mebibytes(r, 'enabled')} |\n")
            errors += _errors(r, _label(cell))
    if "memory" in result:
        text += ("\n**Temporary memory** of forward and backward, b2 h16 d128, MiB\n\n| sequence | XLA | enable() |\n"
                 "|--:|--:|--:|\n")
        for row in result["memory"]:
            text += f"| {row['sequence']} | {row['plain'] / 2**20:.0f} | {row['enabled'] / 2**20:.0f} |\n"
    if "norm" in result:
        text += "\n**RMSNorm** 16384x4096 bfloat16, ms\n\n| pass | XLA | heddle.jax | heddle.jax / XLA |\n|---|--:|--:|--:|\n"
        for row in result["norm"]:
            r = row["results"]
            text += (f"| {row['pass']} | {_milliseconds(r, 'xla')} | {_milliseconds(r, 'heddle')} | "
                     f"{_ratio(r, 'xla', 'heddle')} |\n")
            errors += _errors(r, f"rms_norm, {row['pass']}")
    if "training" in result:
        model, r = result["training"]["model"], result["training"]["results"]
        text += (f"\n**Training step**, {model['layers']} layers, width {model['width']}, {model['heads']} heads, batch "
                 f"{model['batch']} of {model['sequence']} bytes, {model['dtype']}, Adam\n\n| | ms a step | faster | "
                 "peak GiB | fused calls | loss at the end | furthest from XLA's curve |\n" + "|---" + "|--:" * 6 + "|\n")
        for name in ("plain", "enabled", "op"):
            if "seconds" in r.get(name, {}):
                apart = max(abs(a - b) for a, b in zip(r[name]["losses"], r["plain"]["losses"]))
                text += (f"| {NAMES[name]} | {r[name]['seconds'] * 1e3:.1f} | {_ratio(r, 'plain', name)} | "
                         f"{r[name]['peak_bytes'] / 2**30:.2f} | {r[name]['fused_calls']} | "
                         f"{r[name]['losses'][-1]:.3f} | {apart:.3f} |\n")
        errors += _errors(r, "training")
    if result.get("devices"):
        text += ("\n**Many GPUs**, attention forward and backward, causal, bfloat16, h16 d128, ms\n\n| work | GPUs | one GPU | "
                 "all | efficiency |\n|---|--:|--:|--:|--:|\n")
        names = {"batch": "b2 s8192 a GPU", "ring": "b1 s32768 round the ring"}
        for row in result["devices"]:
            one, every = row["seconds"]["one"] * 1e3, row["seconds"]["all"] * 1e3
            efficiency = one / every / (row["gpus"] if row["work"] == "ring" else 1)
            text += f"| {names[row['work']]} | {row['gpus']} | {one:.3f} | {every:.3f} | {efficiency:.2f} |\n"
    return text + errors


def plots(result, folder):
    """jax.svg: times of attention, grouped bars on a logarithmic axis. jax_loss.svg: the loss curves."""
    try:
        import matplotlib
    except ImportError:
        print("No plots: matplotlib is not installed.")
        return
    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    if "attention" in result:
        figure, axis = plt.subplots(figsize=(1.2 + 1.6 * len(result["attention"]), 3.4))
        for offset, name in enumerate(NAMES):
            bars = [(i, row["results"].get(name, {}).get("seconds")) for i, row in enumerate(result["attention"])]
            bars = [(i, seconds * 1e3) for i, seconds in bars if seconds]
            drawn = axis.bar([i + (offset - 1.5) * 0.2 for i, _ in bars], [ms for _, ms in bars], 0.2,
                             color=COLORS[name], label=NAMES[name])
            axis.bar_label(drawn, fmt="%.2f", fontsize=6)
        axis.set_yscale("log")
        axis.set_ylabel("ms")
        axis.set_xticks(range(len(result["attention"])), [_label(row["cell"]).replace(", ", "\n") for row in
                                                          result["attention"]], fontsize=7)
        axis.set_title(f"Causal attention, bfloat16, {result['machine']['gpu']}", fontsize=9)
        axis.legend(fontsize=7)
        figure.tight_layout()
        figure.savefig(folder / "jax.svg")
        plt.close(figure)
    if "training" in result:
        figure, axis = plt.subplots(figsize=(5, 3))
        for name, style in (("plain", "-"), ("enabled", "--")):
            losses = result["training"]["results"].get(name, {}).get("losses", [])
            axis.plot(losses, style, color=COLORS[name], label=NAMES[name], linewidth=1.4)
        axis.set_xlabel("step")
        axis.set_ylabel("loss, nats a byte")
        axis.set_title("A 12-layer GPT's training, enable() off and on", fontsize=9)
        axis.legend(fontsize=8)
        figure.tight_layout()
        figure.savefig(folder / "jax_loss.svg")
        plt.close(figure)
