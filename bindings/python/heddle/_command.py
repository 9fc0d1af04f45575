"""The `heddle` command of an installed package: the native one, and what Python adds to `heddle doctor`."""

import os
import subprocess
import sys

from heddle import _library


def python_state():
    """Lines for `heddle doctor`: this package, its Python, and JAX."""
    lines = [("python", f"{sys.version.split()[0]}, {sys.executable}"),
             ("package", f"heddle {_library.version()}, {_library.library_path()}")]
    try:
        import jax
    except ImportError:
        return [*lines, ("jax", "not installed")]
    from heddle.jax._versions import refusal

    refused = refusal(jax.__version__)
    if refused:
        return [*lines, ("jax", refused)]
    from heddle.jax import _live

    lines.append(("jax", f"{jax.__version__}, on {jax.default_backend()}"))
    try:
        _live._hook()
        lines.append(("enable()", "works"))
    except RuntimeError as error:
        lines.append(("enable()", str(error)))
    return lines


def main():
    """Runs the command with this process's arguments."""
    command, arguments = _library.command_path(), sys.argv[1:]
    if arguments != ["doctor"]:
        os.execv(command, ["heddle", *arguments])
    status = subprocess.run([command, *arguments]).returncode
    for name, text in python_state():
        print(f"{name:<14}{text}")
    sys.exit(status)
