"""Where does a game run: here, in a thread of its own, or in a process of its own? As it declares."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.environments.hosting.counts import HostCounts, host_counts
    from whetstone.environments.hosting.hosts import Host, host_of

__getattr__, __dir__ = window(__name__)

__all__ = ["Host", "HostCounts", "host_counts", "host_of"]
