"""Check of the weight sync during a run: an engine outside of this process must sample from the trained policy."""

from __future__ import annotations

import math

from whetstone.assembly.assembly import RunComponents
from whetstone.inference import Engine
from whetstone.inference.engine_check import require_weight_sync
from whetstone.inference.restarting_engine import RestartingEngine

_BOUND = 0.05
"""Smallest bound on the difference of log-probs under equal weights, in nats; see `check_engine`."""


async def check_outside_engine(assembly: RunComponents, engine: Engine) -> str | None:
    """Check that an outside engine samples from the weights that it receives, while its other requests wait.

    Perturbed weights are sent and then the policy's; see `check_weight_sync`. The engine `local` needs no check, and
    replicas on a cluster are checked when they start.

    Args:
        assembly: Components of the run.
        engine: Engine of the run, with the current weights of the policy.

    Returns:
        The result in one line; None if the engine needs no check.

    Raises:
        WeightSyncError: If the engine samples from other weights; the message has the cause.
    """
    recipe = assembly.resolved.recipe
    if recipe.engine.name == "local" or assembly.cluster is not None or not isinstance(engine, RestartingEngine):
        return None
    settings = recipe.reinforcement
    # a run accepts this KL divergence between sampler and learner, which is about half the squared difference
    accepted = math.sqrt(2 * settings.max_mismatch_kl) if settings is not None else 0.0
    async with engine.hold_requests():
        return await require_weight_sync(engine, assembly.policy, bound=max(_BOUND, accepted), name=recipe.engine.name)
