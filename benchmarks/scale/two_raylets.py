"""Ray nodes on this machine for benchmarks: a head node with the run's process, and others that can be killed."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator
from typing import Any

from whetstone.recipe import load_recipe
from whetstone.scaling.ray_start import set_ray_environment

STORE = 256 * 2**20


def two_raylets(*, cpus: int, mended: bool = False) -> contextlib.AbstractContextManager[Any]:
    """Start two nodes; see `raylets`."""
    return raylets(2, cpus=cpus, mended=mended)


@contextlib.contextmanager
def raylets(count: int, *, cpus: int, mended: bool = False) -> Iterator[Any]:
    """Run a cluster on the loopback address for the block, with this process as a member.

    Args:
        count: Initial number of nodes.
        cpus: CPUs per node; one node must fit all actors if nodes can die.
        mended: Whether a dead node is replaced.
    """
    with set_ray_environment(load_recipe("demo", ["scale=local-ray"]).recipe.scale):
        ray: Any = importlib.import_module("ray")
        of_tests: Any = importlib.import_module("ray.cluster_utils")
        node = {"num_cpus": cpus, "object_store_memory": STORE}
        cluster = of_tests.Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        over = threading.Event()
        try:
            for _ in range(count - 1):
                cluster.add_node(**node)
            ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
            mending = threading.Thread(target=_mend, args=(ray, cluster, node, over), daemon=True)
            if mended:
                mending.start()
            yield cluster
            over.set()
            if mended:
                mending.join(10)
        finally:
            over.set()
            ray.shutdown()
            cluster.shutdown()


def _mend(ray: Any, cluster: Any, node: dict[str, Any], over: threading.Event) -> None:
    while not over.wait(1.0):
        if sum(each["Alive"] for each in ray.nodes()) < 2:
            with contextlib.suppress(Exception):  # retried
                join(cluster, wait=False, **node)
                over.wait(5.0)


def join(cluster: Any, **node: Any) -> Any:
    """Add a node from any thread; it ends with that thread.

    Ray sets a signal handler per node, which only the main thread may do, so that the call is replaced.
    """
    utils: Any = importlib.import_module("ray._private.utils")
    original, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda handler: None
    try:
        return cluster.add_node(**node)
    finally:
        utils.set_sigterm_handler = original
