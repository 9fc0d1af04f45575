"""Which C++ files are compiled as one: most of a file's time goes to headers, and files of a unit share them.

    join_sources.py ROOT OUTPUT MOST FILE...

Writes ROOT-relative includes of up to MOST files each to OUTPUT/joined_1.cpp and on, of more than one file, and prints what
is to be compiled, a path per line. Files stay in a unit's order as given. What a file has for itself (in an unnamed
namespace, static, or as a macro) no other file of its unit names, so that each means what it means alone.
"""

import re
import sys
from pathlib import Path

NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
DIRECTIVE = re.compile(r"^\s*#.*$", re.M)
BRACE = re.compile("[{}]")
UNNAMED = re.compile(r"^namespace \{", re.M)
TEMPLATE = re.compile(r"\btemplate\s*<.*?>\s*(?=\w)", re.S)
TYPE = re.compile(r"(?:struct|class|union|enum class|enum) (\w+)")
MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.M)
STATIC = re.compile(r"^static\b[^;({=]*?(\w+)\s*[({=;\[]", re.M)
# Another name for something, or its own brought here: two files may give it the same meaning.
ALIAS = re.compile(r"\b(?:using|namespace) (\w+) = ([^;]+);|\busing ((?:\w+::)+)(\w+);")
# GoogleTest's macros make names of their arguments: theirs is the whole of it.
TEST = re.compile(r"[A-Z_]+\(.*", re.S)
FUNCTION_OR_VALUE = re.compile(r"\b(?!(?:void|bool|int|float|double|auto)\b)([A-Za-z_]\w*)\s*(?:\(|\[|=|$)")
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


def meanings(text, file):
    """Names that a file has for itself, each with what it means."""
    names = {}
    for alias in ALIAS.finditer(text):
        names[alias[1] or alias[4]] = alias[2] or alias[3]
    own = [*MACRO.findall(text), *STATIC.findall(text)]
    text = DIRECTIVE.sub("", text)
    for unnamed in UNNAMED.finditer(text):
        for declaration in map(str.strip, declarations(text, unnamed.end())):
            name = TYPE.match(declaration) or TEST.match(declaration) or FUNCTION_OR_VALUE.search(declaration)
            if name and not declaration.startswith("using "):
                own.append(name[name.lastindex or 0])
    names.update(dict.fromkeys(own, file))
    return names


class Source:
    def __init__(self, file):
        text = NOISE.sub(" ", file.read_text(encoding="utf-8"))
        self.file = file
        self.own = meanings(text, file)
        self.used = set(USED.findall(DIRECTIVE.sub("", text)))

    def goes_with(self, other):
        """Whether each file's own names mean nothing else in the other."""
        both = (self.own.keys() & other.used) | (other.own.keys() & self.used)
        return all(self.own.get(name) == other.own.get(name) for name in both)


def units(files, most):
    """Lists of files."""
    shelves = []
    for source in map(Source, files):
        for shelf in shelves:
            if len(shelf) < most and all(source.goes_with(other) for other in shelf):
                shelf.append(source)
                break
        else:
            shelves.append([source])
    return [[source.file for source in shelf] for shelf in shelves]


def main():
    root, output, most, *files = sys.argv[1:]
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    count = 0
    for unit in units([Path(file) for file in files], int(most)):
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
