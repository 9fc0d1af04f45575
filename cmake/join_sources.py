"""Which C++ files are compiled as one: most of a file's time goes to headers, and files of a unit share them.

    join_sources.py ROOT OUTPUT MOST FILE...

Writes ROOT-relative includes of up to MOST files each to OUTPUT/joined_1.cpp and on, of more than one file, and prints what
is to be compiled, a path per line. Files stay in a unit's order as given. What a file has for itself (in an unnamed
namespace, static, or as a macro) no other file of its unit names, and no header that it alone includes declares, so that each
means what it means alone. A file that is changed so that this no longer holds is apart when cmake next looks.
"""

import functools
import re
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
INCLUDED = ("src", "include", "kernels", "tests", ".")  # folders on include paths
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
DIRECTIVE = re.compile(r"^\s*#.*$", re.M)
BRACE = re.compile("[{}]")
UNNAMED = re.compile(r"^namespace \{", re.M)
NAMESPACE = re.compile(r"^namespace [\w:]* ?\{", re.M)
TEMPLATE = re.compile(r"\btemplate\s*<.*?>\s*(?=\w)", re.S)
TYPE = re.compile(r"(?:struct|class|union|enum class|enum) (\w+)")
INCLUDE = re.compile(r'^\s*#\s*include "([^"]+)"', re.M)
MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.M)
STATIC = re.compile(r"^static\b[^;({=]*?(\w+)\s*[({=;\[]", re.M)
# Another name for something, or its own brought here: two files may give it the same meaning.
ALIAS = re.compile(r"\b(?:using|namespace) (\w+) = ([^;]+);|\busing ((?:\w+::)+)(\w+);")
# GoogleTest's macros make names of their arguments: theirs is the whole of it.
TEST = re.compile(r"[A-Z_]+\(.*", re.S)
FUNCTION_OR_VALUE = re.compile(r"\b(?!(?:void|bool|int|float|double|auto)\b)([A-Za-z_]\w*)\s*(?:\(|\[|=|$)")
FURTHER_VALUE = re.compile(r",[\s*&]*(\w+)\s*(?=[=\[,]|$)")
# Neither members nor what a named scope is asked for.
USED = re.compile(r"(?<![\w.:>])\w+|(?<=[^-]>)\w+")


def declarations(text, begin):
    """Those of a scope whose brace has been opened, without what is inside their braces."""
    depth, kept = 1, []
    for brace in BRACE.finditer(text, begin):
        if depth == 1:
            kept.append(text[begin:brace.start()])
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            break
        begin = brace.end()
    return TEMPLATE.sub("", ";".join(kept)).split(";")


def declared(text, scope):
    """Names that scopes which open so declare."""
    text = DIRECTIVE.sub("", text)
    for opened in scope.finditer(text):
        for declaration in map(str.strip, declarations(text, opened.end())):
            name = TYPE.match(declaration) or TEST.match(declaration) or FUNCTION_OR_VALUE.search(declaration)
            if name and not declaration.startswith("using "):
                yield name[name.lastindex or 0]
                if "(" not in declaration.partition("=")[0]:
                    yield from FURTHER_VALUE.findall(declaration)


def meanings(text, file):
    """Names that a file has for itself, each with what it means."""
    names = {alias[1] or alias[4]: alias[2] or alias[3] for alias in ALIAS.finditer(text)}
    names.update(dict.fromkeys([*MACRO.findall(text), *STATIC.findall(text), *declared(text, UNNAMED)], file))
    return names


@functools.cache
def header_names(header, places):
    """Names that a header of ours and those that it includes declare."""
    text = header.read_text(encoding="utf-8")
    deeper = (header_names(other, places) for other in included(header, text, places))
    text = NOISE.sub(" ", text)
    return {alias[1] or alias[4] for alias in ALIAS.finditer(text)}.union(MACRO.findall(text), declared(text, NAMESPACE), *deeper)


def included(file, text, places):
    """Headers of ours that a file includes: beside it, or below one of the places."""
    for name in INCLUDE.findall(text):
        header = next((place / name for place in (file.parent, *places) if (place / name).is_file()), None)
        if header and header.suffix == ".h":
            yield header.resolve()


class Source:
    def __init__(self, file, places=()):
        text = file.read_text(encoding="utf-8")
        self.headers = frozenset().union(*(header_names(header, places) for header in included(file, text, places)))
        text = NOISE.sub(" ", text)
        self.file = file
        self.own = meanings(text, file)
        self.used = set(USED.findall(DIRECTIVE.sub("", text)))

    def goes_with(self, other):
        """Whether each file's own names mean nothing else in the other, nor in what the other alone includes."""
        both = (self.own.keys() & other.used) | (other.own.keys() & self.used)
        return (all(self.own.get(name) == other.own.get(name) for name in both)
                and self.defined().isdisjoint(other.headers - self.headers)
                and other.defined().isdisjoint(self.headers - other.headers))

    def defined(self):
        """Own names that are no others' by another name."""
        return {name for name, meaning in self.own.items() if meaning == self.file}


def units(files, most, places=()):
    """Lists of files."""
    shelves = []
    for source in (Source(file, places) for file in files):
        for shelf in shelves:
            if len(shelf) < most and all(source.goes_with(other) for other in shelf):
                shelf.append(source)
                break
        else:
            shelves.append([source])
    return [[source.file for source in shelf] for shelf in shelves]


def main():
    root, output, most, *files = sys.argv[1:]
    places = tuple(PROJECT / place for place in INCLUDED)
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    count = 0
    for unit in units([Path(file) for file in files], int(most), places):
        if len(unit) == 1:
            print(unit[0])
            continue
        count += 1
        joined = output / f"joined_{count}.cpp"
        text = "".join(f'#include "{file.relative_to(root)}"\n' for file in unit)
        if not joined.is_file() or joined.read_text(encoding="utf-8") != text:
            joined.write_text(text, encoding="utf-8")
        print(joined)


if __name__ == "__main__":
    main()
