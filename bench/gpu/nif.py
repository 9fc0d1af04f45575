"""Attention of resident tensors through Elixir's NIF beside heddle.Plan: the same graphs, the same numbers, in turns.

    PYTHONPATH=bindings/python python bench/gpu/nif.py [--device cpu] [--length 2048] [--heads 8] [--dim 64] [--types f32 bf16]

Needs mix, and bindings/elixir compiled (mix compile). A call's time is that of many in a row, waited for at the end; both
wait by copying the last result to the host. Results of both are held to f64, and to each other bit by bit but for dq on a
GPU, whose parts are added in any order.
"""

import argparse
import itertools
import os
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

import heddle

ROOT = Path(__file__).parents[2]
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PASSES = {"forward": ["output", "lse"], "backward": ["dq", "dk", "dv"]}


class Machine:
    """A virtual machine that runs nif.exs."""

    def __init__(self):
        command = ["mix", "run", "--no-deps-check", str(ROOT / "bench/gpu/nif.exs")]
        # Schedulers that spin take the cores from what they wait for.
        flags = {"ERL_FLAGS": "+sbwt none +sbwtdcpu none +sbwtdio none +fnu"}
        self.process = subprocess.Popen(command, cwd=ROOT / "bindings/elixir", env=os.environ | flags, text=True, bufsize=1,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, *words):
        print(*words, file=self.process.stdin)
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise SystemExit(f"The virtual machine ended at {words[0]!r}, with status {self.process.wait()}.")
        return answer

    def load(self, folder, device, kind, shape):
        """Waits through what mix says before the script runs."""
        answer = self.ask("load", folder, device, kind, *shape)
        while answer != "ready":
            answer = self.process.stdout.readline().strip()
            if self.process.poll() is not None:
                raise SystemExit(f"The virtual machine ended: {answer}")


def graph_text(path):
    """Of a string of MLIR."""
    return re.sub(rb"\\([0-9A-F]{2})", lambda hex: bytes.fromhex(hex[1].decode()), path.read_bytes()[1:-1]).decode()


class Planned:
    """A pass by heddle.Plan, on tensors by ascending uid; calls in a row write so many sets of results in turn."""

    def __init__(self, text, device, inputs, outputs, sets):
        self.plan, self.outputs = heddle.Plan(text, device), outputs
        given = dict(zip(self.plan.inputs, inputs, strict=True))
        self.results = [outputs] + [[torch.empty_like(tensor) for tensor in outputs] for _ in range(sets - 1)]
        bound = [given | dict(zip(self.plan.outputs, made, strict=True)) for made in self.results]
        self.addresses = itertools.cycle([{uid: tensor.data_ptr() for uid, tensor in each.items()} for each in bound])
        self.workspace = torch.empty(max(self.plan.workspace_bytes, 1), dtype=torch.uint8, device=device)
        self.stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else None

    def run(self):
        self.plan.execute(next(self.addresses), self.workspace.data_ptr(), self.stream)

    def microseconds(self, count):
        started = time.perf_counter()
        for _ in range(count):
            self.run()
        self.outputs[-1].cpu()
        return (time.perf_counter() - started) * 1e6 / count


def as_bytes(tensor):
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()


def check(name, found, truth, kind):
    """Against f64, by what rounding of the type leaves."""
    error = (found.double() - truth).abs().max().item() / truth.abs().max().item()
    within = {"f32": 1e-4, "bf16": 2e-2, "f16": 2e-3}[kind]
    if not error <= within:
        raise SystemExit(f"{name} of {kind} is off by {error:.1e} of its largest, expected {within}.")


def measure(machine, device, kind, shape, rounds, calls, sets):
    batch, length, heads, dim = shape
    q, k, v, d_out = (torch.randn(shape, device=device).to(TYPES[kind]) for _ in range(4))
    output, dq, dk, dv = (torch.empty_like(q) for _ in range(4))
    lse = torch.empty(batch, heads, length, device=device)
    made, found = {"output": output, "lse": lse, "dq": dq, "dk": dk, "dv": dv}, {}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for name, tensor in {"q": q, "k": k, "v": v, "d_out": d_out}.items():
            (folder / name).write_bytes(as_bytes(tensor))
        machine.load(folder, device, kind, shape)
        plans = {"forward": Planned(graph_text(folder / "forward.mlir"), device, [q, k, v], [output, lse], sets),
                 "backward": Planned(graph_text(folder / "backward.mlir"), device, [q, k, v, output, d_out, lse], [dq, dk, dv], sets)}
        for name, plan in plans.items():
            plan.run()
            for result in PASSES[name]:
                found[result] = (folder / result).read_bytes()
                if as_bytes(made[result]) != found[result] and (device, result) != ("cuda", "dq"):
                    raise SystemExit(f"{result} of {kind} is another through the NIF than by heddle.Plan.")

    exact = [x.double().requires_grad_() for x in (q, k, v)]
    truth = scaled_dot_product_attention(*(x.transpose(1, 2) for x in exact)).transpose(1, 2)
    truth.backward(d_out.double())
    for name, expected in zip(["output", "dq", "dk", "dv"], [truth.detach(), *(x.grad for x in exact)], strict=True):
        check(name, made[name], expected, kind)
        check(name, torch.frombuffer(bytearray(found[name]), dtype=TYPES[kind]).view(shape).to(device), expected, kind)

    for name, plan in plans.items():
        times = {"NIF": [], "Plan": []}
        for _ in range(rounds):
            times["Plan"].append(plan.microseconds(calls))
            times["NIF"].append(float(machine.ask(name, calls)))
        nif, planned = (statistics.median(times[door]) for door in ("NIF", "Plan"))
        print(f"{kind:5} {name:9} NIF {nif:9.1f} us   heddle.Plan {planned:9.1f} us   NIF / Plan {nif / planned:.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=["f32", "bf16"])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--sets", type=int, default=1, help="of results that heddle.Plan's calls write in turn; the NIF's are ever new")
    given = parser.parse_args()
    torch.manual_seed(0)
    machine = Machine()
    shape = given.batch, given.length, given.heads, given.dim
    for kind in given.types:
        measure(machine, given.device, kind, shape, given.rounds, given.calls, given.sets)
    machine.process.stdin.close()


main()
