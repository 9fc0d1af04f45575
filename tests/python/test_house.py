"""ARCHITECTURE.md's table of rooms, the CMake files and every #include say the same."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
ROW = re.compile(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", re.M)
ROOM = re.compile(r"heddle_room\((\w+)(?:\s+DEPENDS\s+([^)]*))?\)")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def written():
    """Room -> rooms it may include, as ARCHITECTURE.md says. `tools` may include every room."""
    rows = dict(ROW.findall((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")))
    return {room: set(re.findall(r"`(\w+)`", allowed)) for room, allowed in rows.items() if room != "tools"}


# Rooms that lie inside another room's folder; device code that a host room shares headers with.
INNER = {"engine_cpu": "engine/cpu", "engine_cuda": "engine/cuda", "hlo_interpreter": "hlo/interpreter"}
SHARED = {"engine_cuda": ROOT / "kernels"}


def folder(room):
    return SOURCES / INNER.get(room, room)


def room_of(path):
    """The room that a path relative to src/ lies in; None if it lies in none."""
    for room, inner in INNER.items():
        if Path(path).is_relative_to(inner):
            return room
    parts = Path(path).parts
    return parts[0] if len(parts) > 1 else None


def linked():
    """Room -> the rooms its CMake file names after DEPENDS."""
    return {room: set(re.findall(r"heddle_(\w+)", depends))
            for file in SOURCES.rglob("CMakeLists.txt")
            for room, depends in ROOM.findall(file.read_text(encoding="utf-8"))}


def test_every_folder_is_a_room_of_the_table():
    folders = {room_of(file.relative_to(SOURCES)) for file in SOURCES.rglob("CMakeLists.txt")} - {None}
    assert folders == set(written())


def test_cmake_links_no_more_than_the_table_says():
    table = written()
    for room, others in linked().items():
        assert others <= table[room], f"{room} depends on {sorted(others - table[room])} in CMake"


def test_includes_stay_within_the_table():
    table = written()
    wrong = []
    for room, allowed in table.items():
        for file in sorted(folder(room).glob("**/*.[hc]*")):
            if file.suffix not in (".h", ".cpp") or room_of(file.relative_to(SOURCES)) != room:
                continue
            for included in INCLUDE.findall(file.read_text(encoding="utf-8")):
                if included.startswith("heddle/") or (room in SHARED and (SHARED[room] / included).is_file()):
                    continue
                target = room_of(included)
                if target is None or target not in allowed | {room}:
                    wrong.append(f"{file.relative_to(ROOT)} includes {included}")
    assert not wrong, "\n".join(wrong)


def test_the_environment_is_read_in_one_place():
    """But for where a machine's caches lie, which no variable of Heddle's says."""
    allowed = {SOURCES / "core" / "environment.cpp": {"name"},
               SOURCES / "engine" / "cuda" / "kernel_cache.cpp": {'"XDG_CACHE_HOME"', '"HOME"'}}
    for folder_ in (SOURCES, ROOT / "tools"):
        for file in sorted(folder_.rglob("*.[hc]*")):
            if file.suffix in (".h", ".cpp"):
                read = set(re.findall(r"\bgetenv\(([^)]*)\)", file.read_text(encoding="utf-8")))
                assert read <= allowed.get(file, set()), file


def test_an_engine_includes_only_the_interface_of_its_room():
    for room in ("engine_cpu", "engine_cuda"):
        for file in sorted(folder(room).glob("**/*.[hc]*")):
            if file.suffix in (".h", ".cpp"):
                included = INCLUDE.findall(file.read_text(encoding="utf-8"))
                assert not {path for path in included if room_of(path) == "engine"} - {"engine/engine.h"}, file


def test_every_room_with_tests_is_in_a_row_of_the_address_sanitizer():
    rows = re.search(r"^room_rows=\((.*)\)$", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.M).group(1)
    files = (ROOT / "tests").glob("*/CMakeLists.txt")
    tested = [file.parent.name for file in files if re.search(r"^heddle_tests\(", file.read_text(encoding="utf-8"), re.M)]
    assert sorted(rows.replace('"', " ").split()) == sorted(tested)


def test_includes_name_files_that_exist():
    places = (SOURCES, ROOT / "include", ROOT / "kernels")
    missing = [f"{file.relative_to(ROOT)}: {included}"
               for file in sorted([*SOURCES.rglob("*.h"), *SOURCES.rglob("*.cpp")])
               for included in INCLUDE.findall(file.read_text(encoding="utf-8"))
               if not any((place / included).is_file() for place in (*places, file.parent))]
    assert not missing, "\n".join(missing)
