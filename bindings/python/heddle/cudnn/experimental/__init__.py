"""What the frontend calls experimental: operators of frameworks."""

from importlib import import_module


def __getattr__(name):
    if name == "ops":
        return import_module("heddle.cudnn.experimental.ops")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
