"""Nodes of Ray on this machine, for benches: a head with the run's process, and others that may be killed."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator
from typing import Any

from whetstone.recipe import load_recipe
from whetstone.scaling.ray_start import environment_of

STORE = 256 * 2**20


def two_raylets(*, cpus: int, mended: bool = False) -> contextlib.AbstractContextManager[Any]:
    """Two of them; see `raylets`."""
    return raylets(2, cpus=cpus, mended=mended)


@contextlib.contextmanager
def raylets(count: int, *, cpus: int, mended: bool = False) -> Iterator[Any]:
    """A cluster that this process belongs to for as long as the block lasts, all on the loopback address.

    Args:
        count: Nodes from the start.
        cpus: Of each node; a node alone should have room for all where one may die.
        mended: Whether another node takes the place of one that dies.
    """
    with environment_of(load_recipe("demo", ["scale=local-ray"]).recipe.scale):
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
            with contextlib.suppress(Exception):  # it is tried again
                join(cluster, wait=False, **node)
                over.wait(5.0)


def join(cluster: Any, **node: Any) -> Any:
    """Add a node, in whatever thread, with which it dies. Ray sets a handler of signals for each, which the main thread
    alone may."""
    utils: Any = importlib.import_module("ray._private.utils")
    kept, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda handler: None
    try:
        return cluster.add_node(**node)
    finally:
        utils.set_sigterm_handler = kept
