"""The version that programs ask for before they use what came with it: of the contracts that Heddle keeps."""

_BACKEND = (9, 24, 0)


def backend_version() -> int:
    """92400: what this version of cuDNN's backend promises, Heddle's graphs do or decline."""
    major, minor, patch = _BACKEND
    return major * 10000 + minor * 100 + patch


def backend_version_string() -> str:
    """The same in words, "9.24.0"."""
    return ".".join(map(str, _BACKEND))
