"""Counters of open games, threads and worker processes, for tests and diagnosis."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(slots=True)
class HostCounts:
    """Counters of the games, threads and worker processes of this process."""

    open_games: int = 0
    """Number of games that are not closed."""
    threads: int = 0
    """Number of live threads, including idle ones."""
    processes: int = 0
    """Number of live worker processes, including idle ones."""
    started: int = 0
    """Number of worker processes started so far."""
    recycled: int = 0
    """Number of worker processes ended after their maximum number of episodes."""
    killed: int = 0
    """Number of worker processes killed during a command whose caller was canceled."""
    abandoned: int = 0
    """Number of threads left in a command whose caller was canceled; threads cannot be killed."""


COUNTS = HostCounts()
"""Counters of this process, updated by the hosts."""


def copy_host_counts() -> HostCounts:
    """Return a copy of the current counters of this process."""
    return replace(COUNTS)
