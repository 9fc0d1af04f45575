"""Tables and a plot of what bench/cpu.py measured."""

from cells import Cell

NAMES = ("heddle", "onnxruntime", "torch", "jax")
COLORS = {"heddle": "#1b7837", "onnxruntime": "#b2abd2", "torch": "#e08214", "jax": "#4393c3"}


def gflops(cell, result):
    return None if not result or "seconds" not in result else cell.flops / result["seconds"] / 1e9


def best_peer(cell, results):
    rates = [gflops(cell, results.get(name)) for name in NAMES[1:]]
    return max((rate for rate in rates if rate is not None), default=None)


def tables(result):
    """Markdown: one table for forward, one for forward and backward, one for memory."""
    machine = result["machine"]
    peaks = sorted(row["results"]["heddle"]["f32_peak"] for row in result["cells"]) or [machine["f32_gflops"]]
    text = (f"{machine['cpu']}, {result['threads']} threads, Heddle on {machine['instruction_set']}. Peak measured just "
            f"before each cell: {peaks[0]:.0f} to {peaks[-1]:.0f} GFLOP/s f32 multiply-add")
    text += f" ({machine['bf16_gflops']:.0f} GFLOP/s bf16 products)" if machine["bf16_gflops"] else ""
    text += (".\nBatch 1, 8 heads; GFLOP/s of 4·8·S²·d operations forward (halved when causal), 3.5 times that with "
             "the backward; medians.\n")
    for backward in (False, True):
        text += f"\n**{'Forward and backward' if backward else 'Forward'}**\n\n"
        text += "| dtype | d | S | mask | Heddle | of f32 peak | onnxruntime | torch | JAX | Heddle / best peer |\n"
        text += "|---|--:|--:|---|--:|--:|--:|--:|--:|--:|\n"
        for row in result["cells"]:
            cell = Cell(**row["cell"])
            if cell.backward != backward:
                continue
            rates = [gflops(cell, row["results"].get(name)) for name in NAMES]
            shown = ["-" if rate is None else f"{rate:.1f}" for rate in rates]
            peer = best_peer(cell, row["results"])
            text += (f"| {cell.dtype} | {cell.head_dim} | {cell.sequence} | {'causal' if cell.causal else 'full'} | "
                     f"**{shown[0]}** | {rates[0] / row['results']['heddle']['f32_peak']:.2f} | {shown[1]} | {shown[2]} | {shown[3]} | "
                     f"{'-' if peer is None else f'{rates[0] / peer:.2f}'} |\n")
    if result["memory"]:
        text += "\n**Peak memory of forward and backward, S = 4096, f32, full** (rise of resident memory, MiB)\n\n"
        text += "| d | Heddle | torch | JAX (unfused) | Heddle / unfused |\n|--:|--:|--:|--:|--:|\n"
        for row in result["memory"]:
            peak = {name: bytes_ / 2**20 for name, bytes_ in row["peak_bytes"].items()}
            text += (f"| {row['cell']['head_dim']} | {peak['heddle']:.0f} | {peak['torch']:.0f} | {peak['jax']:.0f} | "
                     f"1/{peak['jax'] / max(peak['heddle'], 1):.0f} |\n")
    return text


def plot(result, path):
    """Grouped bars: GFLOP/s by sequence length, one panel for each dtype, head_dim, mask and pass."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    measured = [(Cell(**row["cell"]), row["results"]) for row in result["cells"]]
    columns = sorted({(c.head_dim, c.causal) for c, _ in measured})
    lines = sorted({(c.backward, c.dtype) for c, _ in measured}, key=lambda k: (k[0], ("f32", "bf16", "f16").index(k[1])))
    figure, axes = plt.subplots(len(lines), len(columns), figsize=(3.2 * len(columns), 2.2 * len(lines)),
                                squeeze=False, sharey=True)
    for axis_row, (backward, dtype) in zip(axes, lines):
        for axis, (head_dim, causal) in zip(axis_row, columns):
            here = [(c, r) for c, r in measured
                    if (c.backward, c.dtype, c.head_dim, c.causal) == (backward, dtype, head_dim, causal)]
            for offset, name in enumerate(NAMES):
                rates = [gflops(cell, results.get(name)) or 0 for cell, results in here]
                axis.bar([i + (offset - 1.5) * 0.2 for i in range(len(here))], rates, 0.2, color=COLORS[name], label=name)
            axis.axhline(result["machine"]["f32_gflops"], color="#777777", linewidth=0.8, linestyle=":")
            axis.set_xticks(range(len(here)), [f"S {cell.sequence}" for cell, _ in here], fontsize=8)
            axis.set_title(f"{dtype} d{head_dim} {'causal' if causal else 'full'}"
                           f"{', fwd+bwd' if backward else ', fwd'}", fontsize=9)
        axis_row[0].set_ylabel("GFLOP/s", fontsize=8)
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
