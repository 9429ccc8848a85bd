"""How does a stage train a scorer? Pairs of episodes, some tasks kept to try it on, a line over the policy's states.

    data → (better, worse) of each task → fit on four fifths of the tasks → accuracy on the rest → STAGE/model/

A later stage names it: `reward: {name: reward_model, stage: reward_model}`. Training takes seconds and depends only on
its recipe and data, so an interrupted stage is repeated.

Easy to get wrong: two pairs of one task are no evidence for each other. Whole tasks are kept, not pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from whetstone.assembly.assembly import assemble
from whetstone.assembly.own_data import scored_episodes
from whetstone.atomic_write import new_folder
from whetstone.errors import DataError
from whetstone.policies import load_policy, merged, save_policy
from whetstone.recipe import Resolved
from whetstone.rewards.judged.material import transcript
from whetstone.rewards.learned.model import Pair, RewardModel
from whetstone.seeding import derive_random
from whetstone.trajectory import Trajectory

MODEL = "model"
"""The folder of it in its stage's."""
_FEWEST = 5
"""Tasks with a better and a worse episode."""


def fit_reward_model(
    resolved: Resolved, folder: Path, *, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Train the scorer of a recipe's `reward_model` stage into a folder. Lines about the data are passed to `say`.

    Returns:
        `accuracy` of the order of pairs it did not see, on how many tasks (`tried_on`); `tasks` it learned from, its
        `loss`.

    Raises:
        DataError: The data cannot be read, or fewer than five tasks have a better and a worse episode.
    """
    settings = resolved.recipe.reward_model
    assert settings is not None
    assembly = assemble(resolved, say=say)
    groups = scored_episodes(assembly, settings)
    tasks = [(pairs, group) for group in groups if (pairs := pairs_in(group))]
    if len(tasks) < _FEWEST:
        raise DataError(
            f"{settings.data.path}: {len(tasks)} tasks have a better and a worse episode; {_FEWEST} or more, some of "
            "them to try it on"
        )
    derive_random(resolved.recipe.seed, "reward_model").shuffle(tasks)
    kept = max(1, round(settings.held_out * len(tasks)))
    learned, tried = tasks[kept:], tasks[:kept]
    trusted = resolved.recipe.policy.trust_remote_code
    base = load_policy(settings.path, trust_remote_code=trusted) if settings.path else assembly.policy
    by_pairs = settings.objective == "pairs"
    with new_folder(folder / MODEL) as aside:
        save_policy(merged(base, "float32"), aside, at=folder / MODEL)
        model = RewardModel(aside, trust_remote_code=trusted)
        loss = model.fit(
            [pair for pairs, _ in learned for pair in pairs] if by_pairs else (),
            () if by_pairs else [(transcript(each), each.solved) for _, group in learned for each in group],
            steps=settings.steps,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
        )
        accuracy = model.accuracy([pair for pairs, _ in tried for pair in pairs])
        model.save()
        result: dict[str, Any] = {"accuracy": accuracy, "tried_on": kept, "tasks": len(learned), "loss": loss}
        result |= {"skipped_rows": assembly.skipped_rows} if assembly.skipped_rows else {}
        (aside / "trained.json").write_text(json.dumps(result, indent=1))
    return result


def pairs_in(episodes: Sequence[Trajectory]) -> list[Pair]:
    """Each better episode of a task with each worse one, as texts; equal texts are not a pair."""
    worth = [(each.score.value, transcript(each)) for each in episodes if each.score is not None]
    return [Pair(a, b) for better, a in worth for worse, b in worth if better > worse and a != b]
