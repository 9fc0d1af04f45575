"""What goes wrong inside of Heddle on a program that JAX compiles: logged once for each reason, never raised."""

import logging
import threading

logger = logging.getLogger("heddle")

_lock = threading.Lock()
_told = set()


def tell(program, reason):
    """Says once for each reason that `program` is compiled as written."""
    reason = str(reason)
    with _lock:
        if reason in _told:
            return
        _told.add(reason)
    logger.warning("%s is compiled as written: %s", program, reason)


def forget():
    """From here on, every reason is said again."""
    with _lock:
        _told.clear()
