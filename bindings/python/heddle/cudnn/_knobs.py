"""Knobs of engines: Heddle's have none, programs may ask for them."""

from dataclasses import dataclass

from heddle.cudnn._types import knob_type


@dataclass(frozen=True)
class Knob:
    """Which numbers a knob of an engine takes."""

    type: knob_type = knob_type.NOT_SET
    max_value: int = 0
    min_value: int = 0
    stride: int = 0
