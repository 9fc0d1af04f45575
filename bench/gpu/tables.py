"""Tables and plots of what measure.py measured."""

import csv
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from cells import NAMES, all_cells, rate

COLORS = {"heddle": "#1b7837", "cudnn": "#4393c3", "flash2": "#b2abd2", "flex": "#e08214", "efficient": "#b35806",
          "compiled": "#4393c3", "compiled_cudnn": "#4393c3", "torch": "#b2abd2", "unrotated": "#a6dba0",
          "unordered": "#a6dba0", "joined": "#a6dba0"}


def _recorded():
    """cell -> (peer, its rate), of the best peer that was measured on an H200 before."""
    cells = {cell.name: cell for cell in all_cells()}
    with open(Path(__file__).with_name("recorded.tsv"), encoding="utf-8") as file:
        rows = csv.DictReader((line for line in file if not line.startswith("#")), delimiter="\t")
        return {row["cell"]: (row["peer"], rate(cells[row["cell"]], float(row["ms"]))) for row in rows}


RECORDED = _recorded()


def ratio(row, who):
    """Heddle's rate over that of `who`, over the recorded best peer's, or (for "rate") itself; None if not known."""
    own = row["rates"].get("heddle")
    if who == "rate":
        return own
    other = RECORDED.get(row["name"], (None, None))[1] if who == "recorded" else row["rates"].get(who)
    return own / other if own and other else None


def verdict(row):
    """"holds", or each floor that is missed: what was reached of what is asked."""
    if "heddle" not in row["rates"]:
        return "short: " + row["notes"]["heddle"]
    if not row["floors"]:
        return ""
    missed = []
    for who, least in row["floors"]:
        reached = ratio(row, who)
        name = "" if who == "rate" else f" of {RECORDED[row['name']][0] if who == 'recorded' else NAMES[who]}"
        if reached is None:
            missed.append(f"no figure{name}")
        elif reached < least:
            missed.append(f"{reached:.{0 if who == 'rate' else 2}f}{name}, asked {least:g}")
    return "short: " + "; ".join(missed) if missed else "holds"


def line(row):
    """One line for the terminal."""
    shown = "  ".join(f"{who} {value:.0f}" for who, value in row["rates"].items())
    error = f"  error {row['error']:.2f}" if "error" in row else ""
    notes = "".join(f"\n    {who}: {note}" for who, note in row["notes"].items() if who != "heddle")
    return f"{row['name']:32s} {shown}{error}  {verdict(row)}{notes}"


def _table(rows):
    peers = list(dict.fromkeys(who for row in rows for who in row["rates"] if who != "heddle"))
    recorded = any(row["name"] in RECORDED for row in rows)
    head = ["cell", "ms", f"Heddle, {rows[0]['unit']}", *(NAMES[who] for who in peers), *(f"/ {NAMES[who]}" for who in peers)]
    head += ["/ best recorded"] if recorded else []
    head += ["error / naive", "floor"]
    text = f"| {' | '.join(head)} |\n|---|{'--:|' * (len(head) - 2)}---|\n"
    for row in rows:
        def shown(value, digits=0):
            return "-" if value is None else f"{value:.{digits}f}"

        columns = [row["name"], shown(row["milliseconds"].get("heddle"), 4), f"**{shown(row['rates'].get('heddle'))}**"]
        columns += [shown(row["rates"].get(who)) for who in peers]
        columns += [shown(ratio(row, who), 2) for who in peers]
        columns += [shown(ratio(row, "recorded"), 2)] if recorded else []
        text += f"| {' | '.join([*columns, shown(row.get('error'), 2), verdict(row)])} |\n"
    return text


def _by_table(result):
    rows = sorted(result["cells"], key=lambda row: list(dict.fromkeys(cell.table for cell in all_cells())).index(row["table"]))
    return [(title, list(group)) for title, group in groupby(rows, key=lambda row: row["table"])]


def text(result):
    """Markdown: a table each of forwards, backwards and so on, and a sum of how many floors hold."""
    asked = [row for row in result["cells"] if row["floors"]]
    held = sum(verdict(row) == "holds" for row in asked)
    out = (f"{result['gpu']}; torch {result['torch']}, cuDNN {result['cudnn']}. Medians of calls in turn; {held} of {len(asked)} "
           "cells hold their floors.\n")
    for title, rows in _by_table(result):
        out += f"\n**{title}**\n\n" + _table(rows)
    if result["left_out"]:
        out += f"\nNot begun for want of time: {', '.join(result['left_out'])}.\n"
    return out


def write(result, folder):
    """gpu.md, and a plot of each table; these need matplotlib."""
    (folder / "gpu.md").write_text(text(result), encoding="utf-8")
    if not find_spec("matplotlib"):
        print("No plots: matplotlib is not installed.")
        return
    for title, rows in _by_table(result):
        name = "".join(c if c.isalnum() else "-" for c in title.lower()).replace("--", "-")
        _plot(title, rows, folder / f"gpu-{name}.svg")


def _plot(title, rows, path):
    """Bars of every program, cell by cell; a mark where the recorded best peer stands."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    who = list(dict.fromkeys(["heddle", *(name for row in rows for name in row["rates"])]))
    figure, axis = plt.subplots(figsize=(max(5, 0.5 * len(rows) + 1), 3.6))
    width = 0.8 / len(who)
    for n, name in enumerate(who):
        places = [i + (n - (len(who) - 1) / 2) * width for i in range(len(rows))]
        axis.bar(places, [row["rates"].get(name, 0) for row in rows], width, color=COLORS[name], label=NAMES.get(name, "Heddle"))
    marks = [(i, RECORDED[row["name"]][1]) for i, row in enumerate(rows) if row["name"] in RECORDED]
    if marks:
        axis.scatter(*zip(*marks), marker="_", s=120, color="black", zorder=3, label="best recorded")
    axis.set_xticks(range(len(rows)), [row["name"] for row in rows], rotation=60, ha="right", fontsize=7)
    axis.set_ylabel(rows[0]["unit"])
    axis.set_title(title, fontsize=9)
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
