"""Kernels kept for later graphs. Heddle keeps those of all graphs, in the process and on disk, whether or not one is given."""

import json

from heddle import _checks


class KernelCache:
    """What `kernel_cache` of a pygraph takes. It holds nothing."""

    def serialize(self) -> str:
        """As text, for `deserialize` of another."""
        return json.dumps({"heddle_kernel_cache": 1})

    def deserialize(self, text: str) -> None:
        """Takes what `serialize` gave. Raises ValueError for another text."""
        try:
            form = json.loads(_checks.text("The text", text))
        except ValueError:
            form = None
        if not isinstance(form, dict) or "heddle_kernel_cache" not in form:
            raise ValueError("The text is that of no kernel cache, expected what serialize gave.")


def create_kernel_cache() -> KernelCache:
    """An empty kernel cache, for as many graphs as the program likes."""
    return KernelCache()
