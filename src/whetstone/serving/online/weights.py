"""Weights after each step of online learning: the nearest checkpoint, and the updates after it recomputed.

Note:
    Everything that determines an update must come from the journal, its turns and the seed. Otherwise the recomputed
    weights differ.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from whetstone.assembly.assembly import RunComponents
from whetstone.assembly.members import learner_for
from whetstone.errors import RunDirectoryError
from whetstone.learning.protocol import Learner
from whetstone.learning.spec import UpdateBatch
from whetstone.recipe import LiveSettings, OptimizerSettings, ReinforcementSettings, Resolved
from whetstone.recipe.settings import STAGE_KINDS
from whetstone.recipe.validation import CREDIT_KEYS, SAMPLING_KEYS
from whetstone.record.checkpoint import Checkpoints, Position, checkpoint_path, load_checkpoint, verify_checkpoint
from whetstone.serving.online.feedback_journal import LearningJournal, Update
from whetstone.serving.online.turns import TurnStore, context_with_hint
from whetstone.trajectory import Group, Provenance

STAGE = "live"


def live_settings(resolved: Resolved) -> LiveSettings:
    """Return the section `live` of a recipe; its default values if the recipe has none."""
    return resolved.recipe.live or LiveSettings()


def convert_live_recipe(resolved: Resolved) -> Resolved:
    """Convert a recipe of online learning into one of reinforcement.

    The components are built from the result. Its groups have one member, are not sampled by the run, and use the reward
    as the advantage.

    Raises:
        RecipeError: The recipe has a separate teacher.
    """
    live = live_settings(resolved)
    if live.hint_weight > 0 and resolved.recipe.teacher is not None and resolved.recipe.teacher.path is not None:
        problem = "in live learning the policy itself reads the hints; leave it out, or set live.hint_weight: 0"
        raise resolved.error("teacher.path", problem)
    wanted = {name: getattr(live, name) for name in OptimizerSettings.model_fields if name in live.model_fields_set}
    wanted |= {"steps": live.steps, "warmup_fraction": live.warmup_fraction, "reference_kl": live.reference_kl}
    # separate weights, so that answers are sampled from one version during training
    wanted |= {"tasks_per_step": live.turns_per_update + live.replay_turns, "admit_ahead": 1, "max_staleness": 1}
    fields = ReinforcementSettings.model_fields
    reinforcement = {
        name: value for name, value in wanted.items() if name == "learning_rate" or value != fields[name].default
    }
    none = (*STAGE_KINDS, *SAMPLING_KEYS, *CREDIT_KEYS, "stages", "repeat_stages", "ablations", "implicit_prm", STAGE)
    changes: dict[str, Any] = dict.fromkeys(none)
    raw: dict[str, Any] = {"name": "group_relative", "singleton": "raw"}
    advantage = {"preference": "dpo_weights", "reward": "standardize_rewards"}.get(live.intervention)
    changes |= {
        "reinforcement": reinforcement,
        "advantage": f"whetstone.serving.online.feedback_credit:{advantage}" if advantage else raw,
    }
    if live.hint_weight > 0:
        distilled = {"name": "on_policy_distillation", "teacher_weight": live.hint_weight, "reward_weight": 1.0}
        changes |= {
            "objective": distilled,
            "teacher": {"privileged_context": "whetstone.serving.online.turns:hint_text"},
        }
    else:
        changes |= {"objective": {"name": "clipped"}, "teacher": None}
    return resolved.with_changes(changes)


class LiveWeights:
    """Policy in training with its learner and checkpoints; restores the weights of any earlier step.

    Args:
        assembly: Components of `convert_live_recipe`.
    """

    def __init__(
        self, assembly: RunComponents, settings: LiveSettings, run_dir: Path, journal: LearningJournal, turns: TurnStore
    ) -> None:
        reinforcement = assembly.resolved.recipe.reinforcement
        assert reinforcement is not None
        self.settings, self.run_dir, self.journal, self.turns = settings, run_dir, journal, turns
        self.assembly = assembly.with_components(teacher_reads=context_with_hint if settings.hint_weight > 0 else None)
        self.learner: Learner = learner_for(self.assembly, reinforcement, None)
        self._checkpoints = Checkpoints(run_dir, keep={checkpoint_path(run_dir, 0)})

    def apply_update(self, update: Update) -> dict[str, float]:
        """Train on the turns of an update; return its metrics.

        Raises:
            WhetstoneError: The update failed; the weights are unchanged.
        """
        groups = [*self.build_groups(update.turns), *map(_replayed, self.build_groups(update.replayed))]
        result = self.learner.update(UpdateBatch(tuple(groups), version=update.step))
        self.learner.end_step()
        return result.metrics

    def build_groups(self, numbers: Sequence[int]) -> list[Group]:
        """Build the training groups of the judged turns with the given numbers."""
        weigh = {"reward_weight": self.settings.reward_weight, "intervention_weight": self.settings.intervention_weight}
        return [turn.build_group(**weigh) for turn in self.turns.get_turns(numbers)]

    def restore(self, step: int) -> None:
        """Restore the weights and the optimizer state after a step.

        The nearest valid checkpoint before the step is loaded, and the updates after it are recomputed.

        Raises:
            RunDirectoryError: There is no valid checkpoint to start from.
        """
        have = {each for each in self.journal.steps if self._is_valid(each)}
        begin, updates = self.journal.path_to(step, have)
        if not self._is_valid(begin):
            raise RunDirectoryError(f"{checkpoint_path(self.run_dir, begin)}: no valid checkpoint to start from")
        self._load(checkpoint_path(self.run_dir, begin))
        for update in updates:
            self.apply_update(update)

    async def save(self, step: int) -> None:
        """Save the current weights as the checkpoint of a step.

        Raises:
            SaveError: The checkpoint could not be written.
        """
        best = self.journal.best
        self._checkpoints.keep = {checkpoint_path(self.run_dir, each) for each in (0, best[0] if best else 0)}
        position = Position(STAGE, {STAGE: step}, self.journal.version)
        last, every = self.settings.keep_last, self.settings.keep_interval_steps
        await self._checkpoints.save(self.assembly.policy, self.learner.state_dict(), position, last=last, every=every)

    async def wait_written(self) -> None:
        """Wait until all saved checkpoints are on disk."""
        await self._checkpoints.wait_until_written()

    def delete_checkpoints(self) -> None:
        """Delete every checkpoint except that of step 0, before unlearning."""
        first = checkpoint_path(self.run_dir, 0)
        for path in first.parent.iterdir():
            if path != first:
                shutil.rmtree(path)

    def _is_valid(self, step: int) -> bool:
        path = checkpoint_path(self.run_dir, step)
        return path.is_dir() and verify_checkpoint(path) is None

    def _load(self, path: Path) -> None:
        trusted = self.assembly.resolved.recipe.policy.trust_remote_code
        policy, optimizer, _ = load_checkpoint(path, trust_remote_code=trusted)
        parameters: Mapping[str, torch.Tensor] = dict(policy.model.named_parameters())
        with torch.no_grad():
            for name, parameter in self.assembly.policy.model.named_parameters():
                parameter.copy_(parameters[name])
        self.learner.load_state_dict(optimizer)


def _replayed(group: Group) -> Group:
    trajectories = (replace(trajectory, provenance=Provenance.REPLAYED) for trajectory in group.trajectories)
    return replace(group, trajectories=tuple(trajectories))
