"""Which files are compiled as one (cmake/join_sources.py): none that could change what another means."""

import importlib.util
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def join(root):
    spec = importlib.util.spec_from_file_location("join_sources", root / "cmake" / "join_sources.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLAIN = "#include <vector>\nnamespace n {\nint plain(int x) { return x; }\n}\n"
# What a file has for itself, and a line of another file that would come to mean it.
OWN = {
    "function": ("namespace n {\nnamespace {\nint helper(double x) { return x; }\n}\n}\n", "int y = helper(1);"),
    "function of a template": ("namespace n {\nnamespace {\ntemplate <class T>\nT helper(T x) { return x; }\n}\n}\n", "int y = helper(1);"),
    "constant": ("namespace {\nconstexpr int kMost = 3;\n}\n", "int y = kMost;"),
    "array": ("namespace {\nconstexpr int kNames[] = {3};\n}\n", "int y = kNames[0];"),
    "type": ("namespace {\nstruct Place {\n  int inner = 0;\n};\n}\n", "Place y;"),
    "static": ("static int helper(int x) { return x; }\n", "int y = helper(1);"),
    "macro": ("#define TWICE(x) x x\n", "int y = TWICE(1);"),
    "alias": ("using Count = int;\n", "Count y = 1;"),
    "using declaration": ("using std::min;\n", "int y = min(1, 2);"),
}


def units(join, folder, *texts, most=10):
    files = []
    for i, text in enumerate(texts):
        files.append(folder / f"{i}.cpp")
        files[-1].write_text(text)
    return [[int(file.stem) for file in unit] for unit in join.units(files, most)]


@pytest.mark.parametrize("kind", OWN)
def test_a_name_of_a_files_own_is_not_met_elsewhere(join, tmp_path, kind):
    own, use = OWN[kind]
    assert units(join, tmp_path, own, f"void f() {{ {use} }}\n", PLAIN) == [[0, 2], [1]]
    assert units(join, tmp_path, f"void f() {{ {use} }}\n", own, PLAIN) == [[0, 2], [1]]


def test_two_files_with_one_name_of_their_own_are_apart(join, tmp_path):
    own = "namespace {\nint helper() { return 1; }\n}\n"
    assert units(join, tmp_path, own, own, PLAIN) == [[0, 2], [1]]


@pytest.mark.parametrize("text", ["using std::min;\nint f() { return min(1, 2); }\n", "namespace fs = std::filesystem;\nfs::path p;\n"])
def test_a_name_that_means_the_same_in_both_is_shared(join, tmp_path, text):
    assert units(join, tmp_path, text, text) == [[0, 1]]
    other = text.replace("std::", "other::")
    assert units(join, tmp_path, text, other) == [[0], [1]]


def test_members_named_scopes_comments_and_literals_are_no_uses(join, tmp_path):
    own = "namespace {\nint helper() { return 1; }\n}\n"
    other = 'int f(X x) {\n  // helper\n  return x.helper() + x->helper() + n::helper("helper", R"(helper)");\n}\n'
    assert units(join, tmp_path, own, other) == [[0, 1]]


def test_as_many_as_are_asked_for(join, tmp_path):
    assert [len(unit) for unit in units(join, tmp_path, *[PLAIN] * 7, most=3)] == [3, 3, 1]


def test_every_source_is_compiled_once(root, tmp_path):
    """All of a room of many names, and no joined file is written again that is as it was."""
    files = sorted((root / "src" / "engine" / "cuda").glob("*.cpp"))

    def joined():
        run = subprocess.run([sys.executable, root / "cmake" / "join_sources.py", root / "src", tmp_path, "10", *files],
                             capture_output=True, text=True, check=True)
        return run.stdout.split()

    compiled = joined()
    assert len(compiled) < len(files) / 3
    read = []
    for path in compiled:
        if path in map(str, files):
            read.append(path)
        else:
            with open(path, encoding="utf-8") as unit:
                read += [str(root / "src" / line.split('"')[1]) for line in unit]
    assert sorted(read) == [str(file) for file in files]
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert joined() == compiled and written == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
