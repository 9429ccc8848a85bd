"""Start of the Ray cluster of a run, if its recipe requests one; Ray is imported only then."""

from __future__ import annotations

import importlib.util

from whetstone.assembly.assembly import RunComponents
from whetstone.optional_dependencies import install_command
from whetstone.rollout.cluster import Cluster
from whetstone.scaling.protocol import Notify
from whetstone.scaling.ray_start import set_ray_environment


async def start_cluster(assembly: RunComponents, *, version: int, notify: Notify) -> Cluster | None:
    """Start the Ray cluster that the recipe's `scale` specifies.

    Returns None if everything runs in this process.

    Args:
        assembly: Components of the run.
        version: Version of the policy's weights.
        notify: Receives a line when processes are placed, and later when one dies or returns.

    Raises:
        WhetstoneError: The cluster does not fit, does not start, or does not meet the requirements of the run.
    """
    if not assembly.resolved.recipe.scale.on_ray:
        return None
    if importlib.util.find_spec("ray") is None:
        raise assembly.resolved.error("scale", f"Ray is not installed; {install_command('ray')}")
    with set_ray_environment(assembly.resolved.recipe.scale):
        on_ray = importlib.import_module("whetstone.scaling.ray_cluster")  # which imports Ray
        begun: Cluster = await on_ray.start_ray_cluster(assembly, version=version, notify=notify)
        return begun
