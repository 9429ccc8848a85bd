"""Is a run spread over processes, and how does that begin? Ray is looked at only where the recipe names it."""

from __future__ import annotations

import importlib.util

from whetstone.assembly.assembly import Assembly
from whetstone.extras import install_command
from whetstone.rollout.cluster import Cluster
from whetstone.scaling.protocol import Say
from whetstone.scaling.ray_start import environment_of


async def cluster_of(assembly: Assembly, *, version: int, say: Say) -> Cluster | None:
    """What the recipe's `scale` asks for, begun; None where all is in this process.

    Args:
        version: Of the policy's weights.
        say: Told what is placed, and later what dies and comes back.

    Raises:
        WhetstoneError: It does not fit, does not begin, or is not what the run relies on.
    """
    if not assembly.resolved.recipe.scale.on_ray:
        return None
    if importlib.util.find_spec("ray") is None:
        raise assembly.resolved.error("scale", f"Ray is not installed; {install_command('ray')}")
    with environment_of(assembly.resolved.recipe.scale):
        on_ray = importlib.import_module("whetstone.scaling.ray_cluster")  # which imports Ray
        begun: Cluster = await on_ray.begin_cluster(assembly, version=version, say=say)
        return begun
