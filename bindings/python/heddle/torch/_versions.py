"""The torch versions that this package works with; others are refused with a sentence when it is imported."""

import re

OLDEST = (2, 8)  # as in pyproject.toml; the tests run with 2.15


def refusal(version: str) -> str | None:
    """Why a version of torch ("2.15.0+cu132") is not supported; None if it is."""
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= OLDEST:
        return None
    return f"heddle.torch works with torch {'.'.join(map(str, OLDEST))} and later, and torch {version} is installed."


def require_supported_torch() -> None:
    """Raises ImportError if torch is missing or of a version that is not supported."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("heddle.torch needs torch, which is not installed: pip install 'heddle[torch]'") from error
    sentence = refusal(torch.__version__)
    if sentence:
        raise ImportError(sentence)
