"""Writes the pages of interfaces: what headers and docstrings say, in their order.

    python docs/site/api_pages.py OUTPUT
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "bindings" / "python"
HEADERS = ROOT / "include" / "heddle"
# Modules whose __all__ is the interface.
MODULES = ("heddle", "heddle.jax", "heddle.onnxruntime", "heddle.cudnn")
# A declaration, with the comment before it.
C_ITEM = re.compile(r"(?:/\*(?P<said>(?:(?!\*/).)*)\*/\n)?(?P<code>(?:typedef |enum \{|HEDDLE_API |struct \w+;)(?:[^;{]|\{[^}]*\})*;)", re.S)


def read(path):
    return path.read_text(encoding="utf-8")


def prose(comment):
    """A block comment's words as a paragraph."""
    return " ".join(line.strip().removeprefix("*").strip() for line in comment.strip().splitlines()).replace("<", "&lt;").replace("*", "\\*")


def c_page():
    header = read(HEADERS / "heddle.h")
    begin, _, rest = header.partition("*/")
    yield "# The C interface"
    yield f"`#include <heddle/heddle.h>`, `-lheddle`. {prose(begin.removeprefix('/*'))}"
    functions = 0
    parts = re.split(r"/\* ---- ([^\n]*)\n \* -+ \*/", rest)
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        yield f"## {title}"
        for item in C_ITEM.finditer(body):
            if item["said"]:
                yield prose(item["said"])
            functions += item["code"].startswith("HEDDLE_API ")
            yield f"```c\n{item['code'].replace('HEDDLE_API ', '').replace(' HEDDLE_AS_INT', '')}\n```"
    if functions != len(re.findall("^HEDDLE_API ", header, re.M)):
        raise SystemExit(f"Of the functions of heddle.h only {functions} were read.")


def cpp_page():
    yield "# The C++ builder"
    said = [line.removeprefix("//").removeprefix(" ") for line in read(HEADERS / "frontend.h").splitlines() if line.startswith("//")]
    begin = said.index("")
    example = [line.removeprefix("  ") for line in said[begin + 1:]]
    yield f"`#include <heddle/frontend.h>`, C++17. {' '.join(said[:begin])}"
    yield "```cpp\n" + "\n".join(example) + "\n```"
    for header in sorted((HEADERS / "frontend").glob("*.h")):
        text = read(header)
        classes = list(re.finditer(r"^(template <[^>]*>\n)?(class|struct) (\w+)[^;{]*\{\n(.*?)^\};", text, re.M | re.S))
        if not any(members(found[4], found[2]) for found in classes):
            continue
        yield f"## `heddle/frontend/{header.name}`"
        yield " ".join(line[2:].strip() for line in text.partition("#pragma")[0].splitlines())
        for found in classes:
            public = members(found[4], found[2])
            if public:
                yield f"### `{found[3]}`\n\n```cpp\n{public}\n```"


def members(body, kind):
    """Declarations of a class that programs may use, with their comments and without bodies."""
    public = re.split(r"^ (private|protected):$", body, flags=re.M)[0]
    if kind == "class":
        public = public.partition(" public:\n")[2]
    kept, depth = [], 0
    for line in public.splitlines():
        if depth == 0 and line.strip() and not line.strip().startswith(": "):
            code = re.sub(r"\s*(?:(?<!:):(?!:).*)?\{.*$", ";", line) if not line.strip().startswith("//") else line
            kept.append(code[2:] if code.startswith("  ") else code)
        if not line.strip().startswith("//"):
            depth += line.count("{") - line.count("}")
    return "\n".join(kept).strip()


def python_page():
    yield "# The Python package"
    for module in MODULES:
        path = PACKAGE.joinpath(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        tree = ast.parse(read(path))
        yield f"## `{module}`"
        yield f"```text\n{ast.get_docstring(tree)}\n```"
        for name in exported(tree):
            node = definition(tree, name)
            if node is not None:
                yield from described(node, name)


def exported(tree):
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    raise SystemExit("A module of the interface has no __all__.")


def definition(tree, name):
    """The function or class of a name, in the module or where the module has it from; None for what is a value."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module.startswith("heddle"):
            for alias in node.names:
                path = PACKAGE.joinpath(*node.module.split(".")).with_suffix(".py")
                if (alias.asname or alias.name) == name and path.is_file():
                    return definition(ast.parse(read(path)), alias.name)
    return None


def described(node, name):
    """A function, or a class with its methods: signature and docstring as they stand."""
    yield f"### `{name}`"
    yield signature(node)
    if isinstance(node, ast.ClassDef):
        for method in node.body:
            documented = isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and ast.get_docstring(method)
            if documented:
                yield signature(method)


def signature(node):
    if isinstance(node, ast.ClassDef):
        made = next((method for method in node.body if isinstance(method, ast.FunctionDef) and method.name == "__init__"), None)
        line = f"class {node.name}" + (f"({arguments(made)})" if made else "")
    else:
        line = f"def {node.name}({arguments(node)})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")
    said = ast.get_docstring(node)
    return f"```python\n{line}\n```" + (f"\n\n```text\n{said}\n```" if said else "")


def arguments(function):
    given = ast.unparse(function.args)
    return re.sub(r"^(self|cls)(, )?", "", given)


def environment_page():
    yield "# Variables of the environment"
    yield ("All that the library, its libraries for ONNX Runtime and the command read; `heddle doctor --help` lists them too. A "
           "variable that takes 0 and 1 refuses everything else by a sentence.")
    table = re.search(r"kVariables\[\] = \{\n(.*?)\n\};", read(ROOT / "src/core/environment.cpp"), re.S)[1]
    rows = ["| variable | values | meaning |", "|---|---|---|"]
    for entry in re.findall(r"\{((?:[^{}\"]|\"[^\"]*\")*)\}", table):
        rows.append("| `{}` | {} | {} |".format(*re.findall(r'"([^"]*)"', entry)))
    yield "\n".join(rows)
    yield ("`HEDDLE_LIBRARY` is read by the Python package and the Elixir project alone: the `libheddle.so` to use in place of their own.")


PAGES = {"c": c_page, "cpp": cpp_page, "python": python_page, "environment": environment_page}


def main():
    output = Path(sys.argv[1])
    output.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (output / f"{name}.md").write_text("\n\n".join(page()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
