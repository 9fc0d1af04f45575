"""Programs are small here and compiled once: XLA need not optimise them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

import quick_xla

quick_xla.prepare()
