"""Which weights are those behind a step of the journal? A checkpoint's, and the updates behind it made again.

Easy to get wrong: everything that decides an update must come from the journal, the turns it names and the seed, or
what is made again is not what was.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from whetstone.assembly.assembly import Assembly
from whetstone.assembly.members import learner_for
from whetstone.errors import RunDirectoryError
from whetstone.learning.protocol import Learner
from whetstone.learning.spec import UpdateBatch
from whetstone.recipe import LiveSettings, OptimizerSettings, ReinforcementSettings, Resolved
from whetstone.recipe.checking import CREDIT_KEYS, SAMPLING_KEYS
from whetstone.recipe.settings import STAGE_KINDS
from whetstone.record.checkpoint import Checkpoints, Position, checkpoint_path, damage, load_checkpoint
from whetstone.serving.live.journal import LearningJournal, Update
from whetstone.serving.live.turns import TurnStore, hint_read
from whetstone.trajectory import Group, Provenance

STAGE = "live"


def settings_of(resolved: Resolved) -> LiveSettings:
    """What a recipe says of live learning; the defaults where it says nothing."""
    return resolved.recipe.live or LiveSettings()


def as_reinforcement(resolved: Resolved) -> Resolved:
    """A recipe as the parts of live learning are made: one of reinforcement alone, from groups of one that nobody
    samples, whose reward is their advantage.

    Raises:
        RecipeError: Another model is to teach.
    """
    live = settings_of(resolved)
    if live.hint_weight > 0 and resolved.recipe.teacher is not None and resolved.recipe.teacher.path is not None:
        said = "in live learning the policy itself reads the hints; leave it out, or set live.hint_weight: 0"
        raise resolved.error("teacher.path", said)
    wanted = {name: getattr(live, name) for name in OptimizerSettings.model_fields if name in live.model_fields_set}
    wanted |= {"steps": live.steps, "warmup_fraction": live.warmup_fraction, "reference_kl": live.reference_kl}
    # weights of its own, so that what is served is drawn whole while others are trained
    wanted |= {"tasks_per_step": live.turns_per_update + live.replay_turns, "admit_ahead": 1, "max_staleness": 1}
    fields = ReinforcementSettings.model_fields
    made = {name: value for name, value in wanted.items() if name == "learning_rate" or value != fields[name].default}
    none = (*STAGE_KINDS, *SAMPLING_KEYS, *CREDIT_KEYS, "stages", "repeat_stages", "ablations", "implicit_prm", STAGE)
    changes: dict[str, Any] = dict.fromkeys(none)
    raw: dict[str, Any] = {"name": "group_relative", "singleton": "raw"}
    own = {"preference": "paired", "reward": "standardised"}.get(live.intervention)
    changes |= {"reinforcement": made, "advantage": f"whetstone.serving.live.credit:{own}" if own else raw}
    if live.hint_weight > 0:
        distilled = {"name": "on_policy_distillation", "teacher_weight": live.hint_weight, "reward_weight": 1.0}
        changes |= {"objective": distilled, "teacher": {"privileged_context": "whetstone.serving.live.turns:hint_of"}}
    else:
        changes |= {"objective": {"name": "clipped"}, "teacher": None}
    return resolved.with_changes(changes)


class LiveWeights:
    """The policy in training, its learner, and its checkpoints.

    Args:
        assembly: Of `as_reinforcement`.
    """

    def __init__(
        self, assembly: Assembly, settings: LiveSettings, run_dir: Path, journal: LearningJournal, turns: TurnStore
    ) -> None:
        reinforcement = assembly.resolved.recipe.reinforcement
        assert reinforcement is not None
        self.settings, self.run_dir, self.journal, self.turns = settings, run_dir, journal, turns
        self.assembly = assembly.with_components(teacher_reads=hint_read if settings.hint_weight > 0 else None)
        self.learner: Learner = learner_for(self.assembly, reinforcement, None)
        self._checkpoints = Checkpoints(run_dir, keep={checkpoint_path(run_dir, 0)})

    def learn(self, update: Update) -> dict[str, float]:
        """Make an update; what it came to.

        Raises:
            WhetstoneError: It cannot be made; no weight has changed.
        """
        groups = [*self.groups(update.turns), *map(_replayed, self.groups(update.replayed))]
        result = self.learner.update(UpdateBatch(tuple(groups), version=update.step))
        self.learner.end_step()
        return result.metrics

    def groups(self, numbers: Sequence[int]) -> list[Group]:
        """Judged turns as an update learns from them."""
        weigh = {"reward_weight": self.settings.reward_weight, "intervention_weight": self.settings.intervention_weight}
        return [turn.group(**weigh) for turn in self.turns.turns(numbers)]

    def bring(self, step: int) -> None:
        """Have the weights and the optimiser behind a step, from the nearest sound checkpoint on the way to it.

        Raises:
            RunDirectoryError: There is none to begin with.
        """
        have = {each for each in self.journal.steps if self._sound(each)}
        begin, updates = self.journal.path_to(step, have)
        if not self._sound(begin):
            raise RunDirectoryError(f"{checkpoint_path(self.run_dir, begin)}: no sound checkpoint to begin with")
        self._take(checkpoint_path(self.run_dir, begin))
        for update in updates:
            self.learn(update)

    async def save(self, step: int) -> None:
        """A checkpoint of the weights behind a step, which are those at hand.

        Raises:
            SaveError: It could not be written.
        """
        best = self.journal.best
        self._checkpoints.keep = {checkpoint_path(self.run_dir, each) for each in (0, best[0] if best else 0)}
        position = Position(STAGE, {STAGE: step}, self.journal.version)
        last, every = self.settings.keep_last, self.settings.keep_interval_steps
        await self._checkpoints.save(self.assembly.policy, self.learner.state_dict(), position, last=last, every=every)

    async def written(self) -> None:
        """Wait until what was saved is on disk."""
        await self._checkpoints.written()

    def forget(self) -> None:
        """Every checkpoint but that of the beginning is gone."""
        first = checkpoint_path(self.run_dir, 0)
        for path in first.parent.iterdir():
            if path != first:
                shutil.rmtree(path)

    def _sound(self, step: int) -> bool:
        path = checkpoint_path(self.run_dir, step)
        return path.is_dir() and damage(path) is None

    def _take(self, path: Path) -> None:
        trusted = self.assembly.resolved.recipe.policy.trust_remote_code
        policy, optimizer, _ = load_checkpoint(path, trust_remote_code=trusted)
        kept: Mapping[str, torch.Tensor] = dict(policy.model.named_parameters())
        with torch.no_grad():
            for name, parameter in self.assembly.policy.model.named_parameters():
                parameter.copy_(kept[name])
        self.learner.load_state_dict(optimizer)


def _replayed(group: Group) -> Group:
    trajectories = (replace(trajectory, provenance=Provenance.REPLAYED) for trajectory in group.trajectories)
    return replace(group, trajectories=tuple(trajectories))
