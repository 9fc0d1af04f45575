"""bench/gpu on a machine without a GPU: its graphs are ones the library takes, its verdicts are right."""

import os
import subprocess
import sys

import pytest

import heddle


@pytest.fixture(scope="module")
def bench(root):
    sys.path.insert(0, str(root / "bench" / "gpu"))
    import cells
    import first_call
    import graphs
    import tables

    yield type("Bench", (), {"cells": cells, "first_call": first_call, "graphs": graphs, "tables": tables})
    sys.path.remove(str(root / "bench" / "gpu"))
    for name in ("cells", "first_call", "graphs", "tables"):
        del sys.modules[name]


def test_every_cell_is_a_graph_that_the_library_plans(bench):
    for cell in [*bench.cells.all_cells(), *bench.first_call.CELLS]:
        if isinstance(cell, bench.cells.Streaming):
            heddle.Plan(bench.graphs.streaming(cell), "cpu")
            continue
        for backward in {False, cell.backward}:
            plan = heddle.Plan(bench.graphs.attention(cell, backward), "cpu")
            assert bench.graphs.UIDS["d_q" if backward else "o"] in plan.outputs


def row(bench, name, rates, notes=None):
    cell = next(cell for cell in bench.cells.all_cells() if cell.name == name)
    return {"name": name, "table": cell.table, "unit": cell.unit, "floors": cell.floors, "rates": rates, "notes": notes or {},
            "milliseconds": {who: cell.work / rate / 1e9 for who, rate in rates.items()}}


def test_verdicts(bench):
    recorded = bench.tables.RECORDED["forward d128 causal 2048"][1]
    holds = row(bench, "forward d128 causal 2048", {"heddle": recorded * 0.93, "cudnn": recorded * 0.92})
    assert bench.tables.verdict(holds) == "holds"
    slower = row(bench, "forward d128 causal 2048", {"heddle": recorded * 0.93, "cudnn": recorded})
    assert bench.tables.verdict(slower) == "short: 0.93 of cuDNN, asked 1"
    alone = row(bench, "forward d128 causal 2048", {"heddle": recorded * 0.93})
    assert bench.tables.verdict(alone) == "short: no figure of cuDNN"
    refused = row(bench, "f32 forward", {"efficient": 35.0}, {"heddle": "cuda: no"})
    assert bench.tables.verdict(refused) == "short: cuda: no"
    streaming = row(bench, "rope 4x32x4096x128", {"heddle": 3400.0})
    assert bench.tables.verdict(streaming) == "short: 3400, asked 3500"
    text = bench.tables.text({"gpu": "a GPU", "torch": "2", "cudnn": 9, "left_out": [],
                              "cells": [holds, slower, refused, streaming]})
    assert "1 of 4 cells hold their floors" in text and "**Forward, bf16**" in text


def test_every_floor_names_something_measured(bench):
    names = [cell.name for cell in bench.cells.all_cells()]
    assert len(names) == len(set(names))
    for cell in bench.cells.all_cells():
        for who, _ in cell.floors:
            assert who == "rate" or who in cell.peers or (who == "recorded" and cell.name in bench.tables.RECORDED), cell.name


def test_lists_its_cells_without_a_gpu(root):
    command = [sys.executable, root / "bench" / "gpu" / "measure.py", "--list", "--only", "^gqa"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert listed == ["gqa forward 2048", "gqa backward 2048", "gqa forward 8192", "gqa backward 8192"]


@pytest.mark.parametrize("arguments, sentence", [(["--only", "("], "'(' is no regular expression"),
                                                 (["--only", "warp"], "no cell's name matches 'warp'; --list names them"),
                                                 (["--tables", "README.md"], "README.md is no result of measure.py"),
                                                 ([], "needs an NVIDIA GPU, and torch 2.0 finds none")])
def test_says_what_is_missing(root, tmp_path, arguments, sentence):
    (tmp_path / "torch.py").write_text('__version__ = "2.0"\n\n\nclass cuda:\n    is_available = staticmethod(bool)\n')
    run = subprocess.run([sys.executable, "bench/gpu/measure.py", *arguments], cwd=root, capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert run.returncode != 0 and "Traceback" not in run.stderr
    assert sentence in run.stderr
