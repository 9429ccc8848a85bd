"""Checks of the data of a recipe's stages before a run."""

from __future__ import annotations

import time

from whetstone.assembly.assembly import RunComponents
from whetstone.assembly.stage_datasets import check_data, read_demonstrations
from whetstone.data import Demonstrations
from whetstone.data.policy_limits import PolicyLimits
from whetstone.evaluation.check_result import Check, CheckStatus
from whetstone.failure_causes import count_failure_causes, format_causes
from whetstone.recipe import Resolved, SupervisedSettings
from whetstone.recipe.stage_settings import get_data
from whetstone.trajectory import Trajectory

_SECONDS = 5.0
"""Time for tokenizing demonstrations; the number of those that are checked is reported."""


def has_data(resolved: Resolved) -> bool:
    """Return True if a stage of the recipe reads data."""
    return any(get_data(settings) is not None for settings in resolved.recipe.own_stages.values())


async def check_stage_data(assembly: RunComponents) -> Check:
    """Read the data of each stage, and tokenize its demonstrations as the stage does.

    A demonstration that the stage skips, or that the policy cannot reproduce within its limits, is a warning; one that
    is longer than the context is a failure.
    """
    check_data(assembly, assembly.resolved)
    for key, settings in assembly.resolved.recipe.own_stages.items():
        if isinstance(settings, SupervisedSettings) and settings.data is not None:
            drawn = read_demonstrations(assembly, settings.data, f"{key}.data")
            if isinstance(drawn, Demonstrations):
                return _check_demonstrations(assembly, f"{key}.data", drawn)
    return Check("", CheckStatus.PASS, "the files of all stages are readable")


def _check_demonstrations(assembly: RunComponents, key: str, demonstrations: Demonstrations) -> Check:
    context_length = assembly.policy.context_length
    began, episodes = time.perf_counter(), []
    for episode in demonstrations.all():
        episodes.append(episode)
        if time.perf_counter() - began > _SECONDS:
            break
    lengths = [_length(episode) for episode in episodes]
    long = [number for number, length in enumerate(lengths) if length > context_length]
    if long:
        longest = max(long, key=lengths.__getitem__)
        text = (
            f"{key}: {len(long)} of {len(episodes)} demonstrations are longer than the context of {context_length:,} "
            f"tokens; {episodes[longest].id} has {lengths[longest]:,}"
        )
        remedy = "shorten or split them, or use a model with a longer context (policy.tiny.context_length)"
        return Check("", CheckStatus.FAIL, text, remedy)
    skipped = [episode for episode in episodes if episode.score is None]
    if skipped:
        causes = format_causes(count_failure_causes(skipped))
        text = f"{key}: {len(skipped)} of {len(episodes)} demonstrations are skipped: {causes}"
        return Check("", CheckStatus.WARN, text)
    for problem in PolicyLimits.of_recipe(assembly.resolved.recipe).add(episodes).problems(key):
        return Check("", CheckStatus.WARN, problem.text, problem.remedy)
    return Check("", CheckStatus.PASS, f"{key}: {len(episodes)} demonstrations, {max(lengths):,} tokens at most")


def _length(episode: Trajectory) -> int:
    return max(map(len, episode.segments()), default=0)
