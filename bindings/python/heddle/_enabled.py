"""What `enable()` returns, of whatever it is that is enabled."""

from collections.abc import Callable


class Enabled:
    """`with enable(): ...` disables at the end of the block."""

    def __init__(self, disable: Callable[[], None]) -> None:
        self._disable = disable

    def __enter__(self) -> "Enabled":
        return self

    def __exit__(self, *_: object) -> None:
        self._disable()
