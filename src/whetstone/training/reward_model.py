"""Reward model training: a linear head over the policy's hidden states, fitted to pairs of episodes.

    data → (better, worse) of each task → fit on four fifths of the tasks → accuracy on the rest → STAGE/model/

A later stage names it: `reward: {name: reward_model, stage: reward_model}`. Training takes seconds and depends only on
its recipe and data, so an interrupted stage is repeated.

Note:
    Two pairs of one task are not independent. Whole tasks are held out, not pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from whetstone.assembly.assembly import assemble
from whetstone.assembly.stage_datasets import load_scored_episodes
from whetstone.atomic_write import new_folder
from whetstone.errors import DataError
from whetstone.policies import load_policy, merge_adapters, save_policy
from whetstone.recipe import Resolved
from whetstone.rewards.judge_rewards.judge_input import format_episode
from whetstone.rewards.learned.model import EpisodePair, RewardModel
from whetstone.seeding import derive_random
from whetstone.trajectory import Trajectory

MODEL = "model"
"""Name of the model's folder in the folder of its stage."""
_FEWEST = 5
"""Minimum number of tasks that have a better and a worse episode."""


def fit_reward_model(
    resolved: Resolved, folder: Path, *, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Train the reward model of a `reward_model` stage into a folder.

    Lines about the data are passed to `say`.

    Args:
        resolved: Recipe with the stage `reward_model`.
        folder: Folder of the stage; the model is written to `model/` in it.

    Returns:
        `accuracy` of the order of held-out pairs, number of their tasks (`tried_on`), number of training `tasks`, and
        the final `loss`.

    Raises:
        DataError: If the data cannot be read, or fewer than five tasks have a better and a worse episode.
    """
    settings = resolved.recipe.reward_model
    assert settings is not None
    assembly = assemble(resolved, say=say)
    groups = load_scored_episodes(assembly, settings)
    tasks = [(pairs, group) for group in groups if (pairs := pairs_in(group))]
    if len(tasks) < _FEWEST:
        raise DataError(
            f"{settings.data.path}: {len(tasks)} tasks have a better and a worse episode; {_FEWEST} or more are "
            "required, some of them for evaluation"
        )
    derive_random(resolved.recipe.seed, "reward_model").shuffle(tasks)
    num_held_out = max(1, round(settings.held_out * len(tasks)))
    learned, tried = tasks[num_held_out:], tasks[:num_held_out]
    trusted = resolved.recipe.policy.trust_remote_code
    base = load_policy(settings.path, trust_remote_code=trusted) if settings.path else assembly.policy
    by_pairs = settings.objective == "pairs"
    with new_folder(folder / MODEL) as aside:
        save_policy(merge_adapters(base, "float32"), aside, at=folder / MODEL)
        model = RewardModel(aside, trust_remote_code=trusted)
        loss = model.fit(
            [pair for pairs, _ in learned for pair in pairs] if by_pairs else (),
            () if by_pairs else [(format_episode(each), each.solved) for _, group in learned for each in group],
            steps=settings.steps,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
        )
        accuracy = model.pair_accuracy([pair for pairs, _ in tried for pair in pairs])
        model.save()
        result: dict[str, Any] = {"accuracy": accuracy, "tried_on": num_held_out, "tasks": len(learned), "loss": loss}
        result |= {"skipped_rows": assembly.skipped_rows} if assembly.skipped_rows else {}
        (aside / "trained.json").write_text(json.dumps(result, indent=1))
    return result


def pairs_in(episodes: Sequence[Trajectory]) -> list[EpisodePair]:
    """Return all (better, worse) pairs among the episodes of a task, as texts.

    Episodes without a score, equal scores and equal texts give no pair.
    """
    scored = [(each.score.value, format_episode(each)) for each in episodes if each.score is not None]
    return [EpisodePair(a, b) for better, a in scored for worse, b in scored if better > worse and a != b]
