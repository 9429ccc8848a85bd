"""How many games are open, threads and processes alive? Counted where they are made and let go, for tests and
people."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(slots=True)
class HostCounts:
    """All of this process."""

    open_games: int = 0
    """Begun to be hosted and not closed."""
    threads: int = 0
    """Alive, idle ones among them."""
    processes: int = 0
    """Alive, idle ones among them."""
    started: int = 0
    """Processes started so far."""
    recycled: int = 0
    """Processes ended because they had served as many episodes as one may."""
    killed: int = 0
    """Processes ended in the middle of a command, which nobody waited for any more."""
    abandoned: int = 0
    """Threads left behind in a command that nobody waits for: those cannot be killed."""


COUNTS = HostCounts()


def host_counts() -> HostCounts:
    """As they are now."""
    return replace(COUNTS)
