"""What docs/abi.md promises of the library's symbols, names and versions."""

import re
import subprocess

import pytest

from heddle._library import library_path, version

LIBRARIES = {"libheddle_onnxruntime.so", "libheddle_onnxruntime_onnx.so"}


def exported(library):
    """(symbol, its version node or "") of everything that other programs can reach."""
    found = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    symbols = [line.split() for line in found.splitlines()]
    # A version node is an absolute symbol too, of its own name.
    return {tuple(f"{words[-1]}@@".split("@@")[:2]) for words in symbols if words[1] != "A"}


def soname(library):
    dynamic = subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout
    return re.search(r"\(SONAME\).*\[(.*)\]", dynamic)[1]


def listed(root):
    """(symbol, node) of the list that the linker is given."""
    text = re.sub(r"/\*.*?\*/", "", (root / "src/api/heddle.map").read_text(encoding="utf-8"), flags=re.S)
    return {(symbol, node) for node, body in re.findall(r"(\w[\w.]*) \{(.*?)\}", text, re.S)
            for symbol in re.findall(r"(\w+);", body.partition("local:")[0])}


def project_version(root):
    return re.search(r"project\(heddle VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text(encoding="utf-8"))[1]


def test_exported_symbols_are_the_list(root):
    assert exported(library_path()) == listed(root)


def test_the_list_is_what_the_header_declares(root):
    header = (root / "include/heddle/heddle.h").read_text(encoding="utf-8")
    declared = set(re.findall(r"^HEDDLE_API [^;(]*?(\w+)\(", header, re.M))
    assert {symbol for symbol, _ in listed(root)} == declared


@pytest.mark.parametrize("name", sorted(LIBRARIES))
def test_onnxruntime_libraries_export_two_functions(name):
    assert {symbol for symbol, _ in exported(library_path().parent / name)} == {"RegisterCustomOps", "heddle_onnxruntime_calls"}


def test_the_name_and_the_node_are_those_of_the_version(root):
    major, minor, _ = project_version(root).split(".")
    interface = f"{major}.{minor}" if major == "0" else major
    assert soname(library_path()) == f"libheddle.so.{interface}"
    nodes = {node for _, node in listed(root)}
    assert nodes == {f"HEDDLE_{interface}"} if major == "0" else f"HEDDLE_{major}.{minor}" in nodes


def test_every_place_has_the_same_version(root, heddle):
    project = project_version(root)
    header = (root / "include/heddle/heddle.h").read_text(encoding="utf-8")
    assert ".".join(re.findall(r"#define HEDDLE_VERSION_\w+ (\d+)", header)) == project
    assert re.search(r'version: "(.*?)"', (root / "bindings/elixir/mix.exs").read_text(encoding="utf-8"))[1] == project
    assert f"\n## {project}" in (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert version() == project
    assert heddle("--version").stdout == f"heddle {project}\n"


def test_every_status_is_in_the_documentation(root):
    header = (root / "include/heddle/heddle.h").read_text(encoding="utf-8")
    statuses = re.findall(r"HEDDLE_(\w+) = ", re.search(r"typedef enum heddle_status.*?\{(.*?)\}", header, re.S)[1])
    rows = re.findall(r"^\| `(\w+)` \|", (root / "docs/errors.md").read_text(encoding="utf-8"), re.M)
    assert rows == statuses
