"""Sphinx reads this. scripts/make-docs says what goes into the site and where it is built."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

project = "Heddle"
release = version = re.search(r"project\(heddle VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "alabaster"
html_theme_options = {"description": "Attention, found and run as one fused kernel", "fixed_sidebar": True, "page_width": "1100px"}
html_copy_source = False
nitpicky = True
# JSON samples of the text form leave things out; a graph's arrays may hold inf and nan, which JSON has no numerals for.
highlight_language = "none"
