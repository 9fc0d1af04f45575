"""Calls of the Elixir package from Python: written as Elixir terms, run by one VM, their results read back."""

import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "bindings" / "elixir"
TYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int64": "i64",
         "uint8": "u8", "bool": "boolean"}
DTYPES = {name: np.dtype(ml_dtypes.bfloat16) if name == "bf16" else np.dtype(dtype) for dtype, name in TYPES.items()
          if dtype != "bfloat16"} | {"bf16": np.dtype(ml_dtypes.bfloat16)}


class Atom(str):
    """An Elixir atom, or any other term that is written as it stands."""


class Calls:
    def __init__(self, folder):
        self.folder, self.written, self.files = folder, [], 0

    def add(self, name, function, *arguments):
        """A call of "Module.function"; keyword options are a dict, arrays are tensors."""
        module, _, function = function.rpartition(".")
        arity = len(arguments)
        terms = ", ".join(map(self.term, arguments))
        self.written.append(f'{{"{name}", &{module}.{function}/{arity}, [{terms}]}}')

    def run(self):
        """Name -> the arrays of the call's result."""
        (self.folder / "calls.exs").write_text("[" + ",\n".join(self.written) + "]")
        ran = subprocess.run(["mix", "run", str(HERE / "run_calls.exs"), str(self.folder)], cwd=PACKAGE, text=True,
                             capture_output=True, timeout=300)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        results = {}
        for shape in sorted(self.folder.glob("*.shape"), key=lambda path: int(path.stem.rpartition(".")[2])):
            dtype, *dims = shape.read_text().split()
            array = np.frombuffer(shape.with_suffix("").read_bytes(), DTYPES[dtype]).reshape(list(map(int, dims)))
            results.setdefault(shape.stem.rpartition(".")[0], []).append(array)
        return results

    def term(self, value):
        if isinstance(value, Atom):
            return str(value)
        if isinstance(value, dict):
            return "[" + ", ".join(f"{name}: {self.term(x)}" for name, x in value.items()) + "]"
        if isinstance(value, (list, tuple)):
            both = "[]" if isinstance(value, list) else "{}"
            return both[0] + ", ".join(map(self.term, value)) + both[1]
        if hasattr(value, "shape"):
            return self.tensor(np.asarray(value))
        words = {True: "true", False: "false", None: "nil"}
        return words[value] if value is None or isinstance(value, bool) else repr(value)

    def tensor(self, array):
        self.files += 1
        name = f"tensor{self.files}"
        (self.folder / name).write_bytes(np.ascontiguousarray(array).tobytes())
        dims = ", ".join(map(str, array.shape))
        return f'tensor.("{name}", {{{dims}}}, :{TYPES[array.dtype.name]})'
