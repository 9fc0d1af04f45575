"""Programs whose fused form was wrong once, or easily is: one for each way, on inputs that show it; a file for each subject."""

import importlib
import pkgutil

from traps.trap import TRAPS

__all__ = ["TRAPS"]

for subject in pkgutil.iter_modules(__path__):
    importlib.import_module(f"traps.{subject.name}")
