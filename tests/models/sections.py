"""Tables of docs/rewriter.md, and the section of the document that each of them is."""


def table(titles, rows):
    """A title that begins with ">" is of numbers, which stand at the right."""
    rules = ["--:" if title.startswith(">") else "---" for title in titles]
    head = [title.removeprefix(">") for title in titles]
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(rules)}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def written(path, heading, text):
    """The document at path has `text` in place of what was under the heading."""
    document = path.read_text(encoding="utf-8")
    before, found, after = document.partition(f"## {heading}\n")
    if not found:
        raise SystemExit(f"{path} has no section {heading}")
    _, next_heading, rest = after.partition("\n## ")
    path.write_text(f"{before}{found}\n{text}{next_heading}{rest}", encoding="utf-8")
