"""Execution of games: in the episode's thread, in a thread per game, or in a worker process, as the game declares."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.environments.hosting.counts import HostCounts as HostCounts, copy_host_counts as copy_host_counts
    from whetstone.environments.hosting.hosts import Host as Host, create_host as create_host

__getattr__, __dir__ = export_lazily(__name__)
