"""Functions that make graphs: kept by a key of their arguments, and built when they return."""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps

from heddle import _checks
from heddle.cudnn._handle import Handle
from heddle.cudnn._pygraph import pygraph
from heddle.cudnn._tensor import Tensor
from heddle.cudnn._types import data_type, heur_mode, member_of


def graph_cache(key_fn: Callable[..., Hashable], maxsize: int = 256) -> Callable:
    """A decorator: what the function returned for arguments of the same key is returned again; the last `maxsize` are kept."""
    if not callable(key_fn):
        raise TypeError(f"key_fn is of type {type(key_fn).__name__}, expected a function that makes a key of arguments.")
    if _checks.whole("maxsize", maxsize) < 1:
        raise ValueError(f"maxsize is {maxsize}, expected 1 at least.")

    def decorate(function):
        kept, lock = {}, threading.Lock()

        @wraps(function)
        def cached(*args, **kwargs):
            key = key_fn(*args, **kwargs)
            with lock:
                if key in kept:
                    return kept[key]
            made = function(*args, **kwargs)
            with lock:
                while len(kept) >= maxsize and key not in kept:
                    del kept[next(iter(kept))]
                return kept.setdefault(key, made)

        return cached

    return decorate


def jit(heur_modes: heur_mode | Sequence[heur_mode] = heur_mode.A) -> Callable:
    """A decorator of a function that returns (graph, [tensors]): the graph is built, and uids are in the tensors' places."""
    modes = [heur_modes] if isinstance(heur_modes, heur_mode) else heur_modes
    if not isinstance(modes, (list, tuple)) or not modes:
        raise TypeError(f"heur_modes is {heur_modes!r}, expected members of cudnn.heur_mode; with parentheses, as @cudnn.jit().")
    for mode in modes:
        member_of(heur_mode, "A mode of heur_modes", mode)

    def decorate(function):
        @wraps(function)
        def built(*args, **kwargs):
            returned = function(*args, **kwargs)
            if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], pygraph)):
                raise TypeError(f"{function.__name__} returned a {type(returned).__name__}, expected (graph, [tensors]).")
            made, tensors = returned
            for tensor in tensors:
                if not isinstance(tensor, Tensor):
                    raise TypeError(f"{function.__name__} returned a {type(tensor).__name__} among its tensors, expected "
                                    "tensors of the graph.")
            if made.get_execution_plan_count() <= 0:
                made.build(modes)
            return made, [tensor.get_uid() for tensor in tensors]

        return built

    return decorate


@contextmanager
def graph(handle: Handle | None = None, name: str = "", io_data_type: object = data_type.HALF,
          intermediate_data_type: object = data_type.FLOAT, compute_data_type: object = data_type.FLOAT,
          **options: object) -> Iterator[tuple[pygraph, list]]:
    """`with graph(handle) as (g, _):` gives a new pygraph, and an empty list for its tensors."""
    yield pygraph(handle=handle, name=name, io_data_type=io_data_type, intermediate_data_type=intermediate_data_type,
                  compute_data_type=compute_data_type, **options), []
