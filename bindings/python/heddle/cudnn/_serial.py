"""Graphs as bytes: the library's text form with the program's uids."""

import hashlib
import json

from heddle import Error, Graph
from heddle.cudnn._lowering import Lowered

VERSION = 1


def write(lowered):
    held = {"uids": [[uid, own] for uid, own in lowered.own_uids.items()], "graph": json.loads(lowered.graph.text)}
    return json.dumps({"heddle_cudnn": VERSION, "digest": _digest(held), **held}, separators=(",", ":")).encode()


def _digest(held):
    """Of one bit that is another, many graphs are valid and compute something else."""
    return hashlib.sha256(json.dumps(held, separators=(",", ":")).encode()).hexdigest()[:16]


def read(data):
    """Raises TypeError for what are no bytes, ValueError for bytes that are no graph."""
    if isinstance(data, str):
        data = data.encode()
    if isinstance(data, list):
        try:
            data = bytes(data)
        except (TypeError, ValueError):
            raise TypeError("The serialized graph is a list of something else than bytes, expected what serialize gave.") \
                from None
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"The serialized graph is of type {type(data).__name__}, expected bytes, as serialize gives.")
    try:
        form = json.loads(bytes(data))
        if form["heddle_cudnn"] != VERSION:
            raise ValueError(f"version {form['heddle_cudnn']!r}, expected {VERSION}")
        if form["digest"] != _digest({name: form[name] for name in ("uids", "graph")}):
            raise ValueError("something in them has changed since")
        graph = Graph.of_text(json.dumps(form["graph"], ensure_ascii=False))
        own_uids = {int(uid): int(own) for uid, own in form["uids"]}
        if set(own_uids) != {entry["uid"] for entry in form["graph"]["tensors"]} - _inner(form["graph"]):
            raise ValueError("uids that are not those of its tensors")
        graph.validate()
    except Error:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as wrong:
        raise ValueError(f"The bytes are no serialized graph of heddle.cudnn, expected what serialize gave: {wrong}.") from None
    return Lowered(graph, own_uids)


def _inner(form):
    """Uids of the values inside score expressions."""
    found = set()
    for node in form["nodes"]:
        for name in ("score_mod", "score_mod_bprop"):
            expression = node.get(name, {"ops": []})
            found |= {op["output"] for op in expression["ops"]} | {expression.get("score_in")}
    return found
