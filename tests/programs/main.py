"""Runs random programs side by side in processes of their own, and says what they came to."""

import argparse
import collections
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
LONGEST = 60  # seconds for one program, unless its job says otherwise: more is a hang
PROGRAMS_EACH = 400  # before a process is replaced, since what JAX keeps grows


class Process:
    """A worker, and the job that it is at."""

    def __init__(self, cpu):
        self.cpu, self.job, self.done = cpu, None, 0
        self._start()

    def _start(self):
        def keep_to_one():
            if self.cpu is not None:
                os.sched_setaffinity(0, {self.cpu})

        self.said = tempfile.TemporaryFile()
        self.process = subprocess.Popen([sys.executable, str(HERE / "worker.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.said, preexec_fn=keep_to_one)
        self.buffer = b""
        self.done = 0

    def give(self, job):
        if self.done >= PROGRAMS_EACH:
            self.end()
            self._start()
        self.job, self.since = job, time.monotonic()
        self.process.stdin.write((json.dumps(job) + "\n").encode())
        self.process.stdin.flush()

    def answer(self):
        """The outcome if there is one by now: given, or none because the process ended or hangs."""
        found = None
        if b"\n" in self.buffer:
            line, self.buffer = self.buffer.split(b"\n", 1)
            found = json.loads(line)
        elif self.process.poll() is not None:
            found = self._ended(f"status {self.process.returncode}: {self._last_words()}")
        elif time.monotonic() - self.since > self._longest() + (60 if self.done == 0 else 0):
            found = self._lost("hung", f"no result after {self._longest()} s")
        if found:
            found["wall"] = round(time.monotonic() - self.since, 3)
            self.done += 1
        return found

    def _ended(self, how):
        """Of a process that ended: XLA may end with the original too, and then it is no program. None while that is tried."""
        if self.job.get("original"):
            return self._lost("no program", f"with the original alone the process ended with {how}")
        job = self.job
        self._start()
        self.give({**job, "original": f"the process ended with {how}"})
        return None

    def _longest(self):
        return self.job.get("longest", LONGEST)

    def _last_words(self):
        self.said.seek(max(0, self.said.seek(0, os.SEEK_END) - 1000))
        return self.said.read().decode(errors="replace").strip()

    def _lost(self, outcome, why):
        self.end()
        self._start()
        return {"outcome": outcome, "complaints": [why], "job": self.job, "fusions": [], "refusals": [], "choices": {}, "finite": [],
                "source": ""}

    def end(self):
        self.process.kill()
        self.process.wait()


def outcomes(jobs, count, until=None):
    """The outcome of each job, as they come; no new ones are begun when the time is over."""
    cpus = sorted(os.sched_getaffinity(0))
    # As many workers as cores: each on its own, so that no pool of threads is larger than its share.
    processes = [Process(cpus[i % len(cpus)] if count >= len(cpus) > 2 else None) for i in range(count)]
    jobs = iter(jobs)
    busy = set()

    def next_job(process):
        job = None if until and time.monotonic() > until else next(jobs, None)
        if job is None:
            busy.discard(process)
            return
        busy.add(process)
        process.give(job)

    for process in processes:
        next_job(process)
    while busy:
        selector = selectors.DefaultSelector()
        for process in busy:
            selector.register(process.process.stdout, selectors.EVENT_READ, process)
        for key, _ in selector.select(timeout=1.0):
            key.data.buffer += os.read(key.fileobj.fileno(), 1 << 20)
        selector.close()
        for process in list(busy):
            found = process.answer()
            if found:
                yield found
                next_job(process)
    for process in processes:
        process.end()


def named(job):
    return f"seed {job['seed']}" if "seed" in job else str(job.get("trap") or job.get("file") or ".".join(job["model"]))


class Summary:
    def __init__(self):
        self.started = time.monotonic()
        self.outcomes, self.calls, self.kinds, self.reasons = (collections.Counter() for _ in range(4))
        self.failed, self.hidden, self.programs = [], 0, []

    def add(self, found):
        self.outcomes[found["outcome"]] += 1
        for fusion in found["fusions"]:
            self.calls[fusion.get("kind") or ("backward" if "backward" in str(fusion) else "forward")] += 1
        if found["fusions"]:
            self.kinds.update(kinds_of(found["choices"]))
        if found["outcome"] == "left alone":
            self.reasons.update(reason.split("(")[0][:70] for reason in found["refusals"][:1] or ["nothing that looks like attention"])
        if found["outcome"] in ("wrong", "raised", "hung"):
            self.failed.append(found)
        if found["outcome"] == "no program":
            self.programs.append(found)

    def lines(self):
        total = sum(self.outcomes.values())
        fused = sum(self.outcomes[x] for x in ("right", "wrong", "no figures", "raised"))
        taken = time.monotonic() - self.started
        yield f"{total} programs in {taken:.0f} s ({taken / max(total, 1):.3f} s each), {fused} with fused calls: " + \
            ", ".join(f"{n} {kind}" for kind, n in self.calls.most_common())
        yield ", ".join(f"{n} {outcome}" for outcome, n in self.outcomes.most_common())
        yield "fused, by kind: " + ", ".join(f"{kind} {n}" for kind, n in self.kinds.most_common(60))
        yield "left alone because: " + "; ".join(f"{reason} {n}" for reason, n in self.reasons.most_common(25))
        if self.programs:
            yield "no programs: " + "; ".join(f"{named(x['job'])}: {x['complaints'][0][:150]}" for x in self.programs[:5])
        if self.failed:
            yield "FAILED: " + ", ".join(f"{named(x['job'])} ({x['outcome']})" for x in self.failed)


def kinds_of(choices):
    """What a program is counted under."""
    kinds = ["gradient" if choices.get("asked for", "forward") != "forward" else "forward"]
    for name, value in choices.items():
        if name in ("heads", "type", "asked for", "around", "softmax by", "scale", "fused") or name.startswith("mask ") and name[5:].isdigit():
            kinds.append(f"{name.split()[0] if name.startswith('mask ') else name}: {value}")
        elif value is True and name in ("rope", "sink", "dropout", "alibi", "capped"):
            kinds.append(name)
    return kinds


def printed(found):
    yield f"==== {named(found['job'])}: {found['outcome']}"
    yield from found["complaints"]
    if found.get("source"):
        yield found["source"]


def reduce(job, count):
    """The job with as few choices as it takes to fail in the same way."""
    first = next(outcomes([job], 1))
    if first["outcome"] not in ("wrong", "raised", "hung"):
        return first
    kept = dict(job.get("fixed", {}))
    best = first
    changed = True
    while changed:
        changed = False
        names = [name for name in best["choices"] if name not in kept]
        trials = [{**job, "fixed": {**kept, name: "plain"}} for name in names]
        for found in outcomes(trials, count):
            if found["outcome"] == best["outcome"] and len(found["choices"]) < len(best["choices"]):
                best, changed = found, True
        kept = dict(best["job"].get("fixed", {}))
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="programs that were printed")
    parser.add_argument("--seconds", type=float, help="fresh seeds for so long")
    parser.add_argument("--seeds", help="A:B, from A to before B")
    parser.add_argument("--traps", nargs="*", help="the hand-written programs: all, or these")
    parser.add_argument("--print", type=int, metavar="SEED")
    parser.add_argument("--reduce", type=int, metavar="SEED")
    parser.add_argument("--fixed", action="append", default=[], metavar="CHOICE=VALUE", help="with one choice made so")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--library", help="a build's lib/libheddle.so")
    parser.add_argument("--json", help="a file to which each outcome is added, a line each")
    options = parser.parse_args()
    if options.library:
        os.environ["HEDDLE_LIBRARY"] = str(Path(options.library).resolve())
    fixed = dict(x.split("=", 1) for x in options.fixed)
    if options.print is not None:
        sys.path.insert(0, str(HERE))
        from program import generate

        print(generate(options.print, fixed)[0])
        return 0
    if options.reduce is not None:
        print("\n".join(printed(reduce({"seed": options.reduce, "fixed": fixed}, options.jobs))))
        return 0

    sys.path.insert(0, str(HERE.parents[1] / "bindings" / "python"))
    from heddle import _library

    try:
        _library.load()
    except OSError as error:
        sys.exit(f"tests/programs/run: {error}")
    until = None
    if options.traps is not None:
        from worker import prepare

        prepare()
        from traps import TRAPS

        jobs = ({"trap": name} for name in options.traps or TRAPS)
    elif options.files:
        jobs = ({"file": path} for path in options.files)
    else:
        first = int(time.time())
        if options.seeds:
            seeds = range(*map(int, options.seeds.split(":")))
        else:
            seeds = range(first * 1000, (first + 1000000) * 1000)
            until = time.monotonic() + (options.seconds or 60)
            print(f"seeds from {seeds[0]} on")
        jobs = ({"seed": seed, "fixed": fixed} for seed in seeds)
    summary = Summary()
    with open(options.json or os.devnull, "a", encoding="utf-8") as log:
        for found in outcomes(jobs, options.jobs, until):
            summary.add(found)
            log.write(json.dumps(found) + "\n")
            log.flush()
            if found["outcome"] in ("wrong", "raised", "hung"):
                print("\n".join(printed(found)), flush=True)
            elif options.traps is not None or options.files:
                print(f"{named(found['job'])}: {found['outcome']}, {len(found['fusions'])} calls {'; '.join(found['refusals'])[:200]}", flush=True)
    print("\n".join(summary.lines()))
    return 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
