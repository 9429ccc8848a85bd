"""Settings of the cyclic garbage collector for a process that holds a model and its libraries."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_THRESHOLD = 10_000
"""Number of new objects that triggers a collection of the youngest objects; Python's default is 700."""


def exclude_present_objects() -> None:
    """Exclude all present objects from the cyclic garbage collector.

    With a model and its libraries loaded, a collection takes a fifth of a second, during which the event loop is
    blocked.
    """
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def collect_seldom() -> Iterator[None]:
    """Within the block, exclude present objects from collections, and collect less often."""
    thresholds = gc.get_threshold()
    exclude_present_objects()
    gc.set_threshold(_THRESHOLD, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
