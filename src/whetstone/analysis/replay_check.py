"""Replay of a run: recomputes rewards, credit, evaluations and updates from the record, without tool calls.

Nothing is sampled and nothing is written. With the run's own recipe all results must equal the record bit by bit; with
a changed recipe the differences show the effect of the change.

Note: An update depends on the weights before it, so updates can only be replayed from a checkpoint, all of them, in
order.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from whetstone.algorithms import column_names
from whetstone.assembly.assembly import RunComponents, assemble
from whetstone.assembly.members import build_stage_learner
from whetstone.assembly.stage_datasets import as_reinforcement
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import RunDirectoryError
from whetstone.evaluation import Evaluation, MemberResult, summarize_episodes
from whetstone.failure_causes import find_failure_cause
from whetstone.inference import MEMBERS
from whetstone.learning.columns import collect_columns, is_readable_from_record
from whetstone.learning.credit_assignment import assign_credit
from whetstone.learning.learner import LocalLearner, batch_columns
from whetstone.learning.member_learner import MemberLearner
from whetstone.learning.protocol import Learner
from whetstone.learning.spec import UpdateBatch
from whetstone.learning.token_index import index_groups
from whetstone.policies import Policy
from whetstone.recipe import ReinforcementSettings, Resolved
from whetstone.record.checkpoint import Position, checkpoint_path, load_checkpoint
from whetstone.record.reader import RunRecord
from whetstone.record.run_directory import read_json, run_eras, run_recipe
from whetstone.reporting import Journal, read_trajectories
from whetstone.rewards import REWARD_FAILED, score_group, score_trajectory
from whetstone.rollout import MethodComponents
from whetstone.training.budget import budget_fraction_spent
from whetstone.training.evaluation_loop import member_file
from whetstone.training.group_mixer import GroupMixer, total_groups
from whetstone.training.supervised import first_task, sample_imitation
from whetstone.training.train_step import train_step
from whetstone.training.update_groups import open_recorded
from whetstone.trajectory import Group, Score, Task, Trajectory

_SHOWN = 3
_BY_THE_CLOCK = re.compile(rf"({MEMBERS}/[^/]+/)?(time|throughput|memory)/")
"""Metrics, also of other members, that differ each time."""


@dataclass(frozen=True, slots=True)
class ReplayCheck:
    """Result of recomputing one kind of recorded values, such as rewards or advantages."""

    what: str
    """Kind of values, such as `rewards`."""
    count: int
    """Number of values or trajectories that were compared."""
    changed: int
    """Number of differences."""
    examples: tuple[str, ...] = ()
    """The first few differences."""
    mean_change: float = 0.0
    """Mean absolute difference over everything that was compared."""
    left_out: int = 0
    """Number of trajectories that cannot be compared: their reward failed, and their original end reason is unknown."""


class RunReplay:
    """Replays a run from its record: recomputes rewards, credit, evaluations and updates (`whetstone replay`).

    Args:
        run_dir: Run directory of a run of `train`.
        changes: Changed recipe keys, such as `reward=my.module:mine`.

    Raises:
        RunDirectoryError: If there is no run in it.
        RecipeError: If a change is invalid.
    """

    def __init__(self, run_dir: Path, changes: Sequence[str] = ()) -> None:
        self.run_dir = run_dir
        self.eras = [replace(era, resolved=as_reinforcement(era.resolved)) for era in run_eras(run_dir)]
        resolved = run_recipe(run_dir)
        self.stage = next(reversed(resolved.recipe.own_stages), "reinforcement")
        """Stage of the recorded groups."""
        self.learned = resolved.recipe.sampling is None
        """Whether there were updates, not only episodes."""
        self.recorded = as_reinforcement(resolved)
        self.overrides = changes
        self.changed = self._changed(self.recorded)
        self.record = RunRecord(run_dir, forgotten=refuse_damage)
        self.before, self.after = assemble(self.recorded), assemble(self.changed).check()
        self._pairs: dict[int, tuple[RunComponents, RunComponents]] = {len(self.eras) - 1: (self.before, self.after)}
        warm_up = self.recorded.recipe.supervised
        self.warm_up_steps = warm_up.steps if warm_up else 0
        self.first_task = first_task(self.recorded.recipe)

    def _changed(self, resolved: Resolved) -> Resolved:
        """Return a recipe of the run with the changes of the replay, and without distribution (`scale`)."""
        return resolved.with_overrides(self.overrides).with_changes({"scale": None})

    def era_at(self, update: int) -> int:
        """Return the index of the recipe era (see `Era`) that contains an update.

        Args:
            update: Number of the update, from 0.
        """
        return next(number for number, era in enumerate(self.eras) if era.contains_step(self.stage, update))

    def assemblies_at(self, update: int) -> tuple[RunComponents, RunComponents]:
        """Return the components of an update: (by its recorded recipe, with the changes of the replay)."""
        era = self.era_at(update)
        if era not in self._pairs:
            resolved = self.eras[era].resolved
            self._pairs[era] = (assemble(resolved), assemble(self._changed(resolved)))
        return self._pairs[era]

    async def recompute_all(self, *, updates: bool = False) -> AsyncIterator[ReplayCheck]:
        """Recompute all recorded rewards, advantages and evaluations, and compare them with the record.

        Args:
            updates: Whether updates are also replayed, which needs forward and backward passes of the model.

        Yields:
            One check per kind of values.

        Raises:
            RunDirectoryError: The record is damaged, or has nothing that can be recomputed.
        """
        numbers = [number for update in sorted(self.record.consumed) for number in self.record.consumed[update]]
        groups = [self.load_group(number) for number in numbers]
        if updates and not (groups and self.learned):
            raise RunDirectoryError(f"{self.run_dir}: the record has no updates to replay")
        if groups:
            rescored = [await self.rescore_group(group) for group in groups]
            yield _rewards(groups, rescored)
            if all(is_credit_on_record(part) for update in self.record.consumed for part in self.assemblies_at(update)):
                yield self._credit(groups, rescored)
        folder = self.run_dir / "evaluations"
        evaluations = sorted(folder.glob("*.json")) if folder.is_dir() else []
        if not groups and not evaluations:
            raise RunDirectoryError(f"{self.run_dir}: the record has no groups, evaluations or updates to recompute")
        for path in evaluations:
            yield await self._evaluation(path.stem)
        if updates and groups:
            yield await self._updates()

    def load_group(self, number: int) -> Group:
        """Load a recorded group with its task."""
        chosen = self.record.tasks.get(number, self.first_task + number)
        return self.record.load(number, chosen if isinstance(chosen, Task) else self.before.source.task(chosen))

    async def mixed_groups(
        self, method: MethodComponents, settings: ReinforcementSettings, update: int
    ) -> Mapping[str, Sequence[Group]]:
        """Return the groups that a recorded update mixed in from additional sources (`reinforcement.sources`).

        Args:
            method: Components of the recipe, with its group sources.
            settings: Settings of the stage; `tasks_per_step` limits the number of groups.
            update: Number of the update in the journal, from 0.
        """
        open_recorded(self.record, method.sources, lambda position: self.before.source.task(self.first_task + position))
        mixer = GroupMixer(method.sources, groups=total_groups(method.sources, settings.tasks_per_step))
        return (await mixer.take(update, self.record.mixed)).groups

    async def rescore_group(self, group: Group) -> Group:
        """Score a group with the reward of the changed recipe.

        Trajectories without a reward stay without one. Rewards of a model that was trained during the run depend on
        its weights at that time, so the recorded rewards are kept.
        """
        if any(member.is_trained for member in self.after.members.values()):
            return group
        trajectories: list[Trajectory] = []
        for trajectory in group.trajectories:
            if trajectory.score is not None:
                trajectory = await score_trajectory(self.after.reward, trajectory, group.task)
            trajectories.append(trajectory)
        return replace(group, trajectories=await score_group(self.after.reward, trajectories, group.task))

    def _credit(self, groups: Sequence[Group], rescored: Sequence[Group]) -> ReplayCheck:
        """Compare the advantages under the recorded recipe and rewards with those of the changed recipe."""
        by_number = {group.number: (group, new) for group, new in zip(groups, rescored, strict=True)}
        count = changed = 0
        total = 0.0
        examples: list[str] = []
        for update in sorted(self.record.consumed):
            pairs = [by_number[number] for number in self.record.consumed[update]]
            recorded, changed_parts = self.assemblies_at(update)
            before = advantages_of(recorded, [old for old, _ in pairs])
            after = advantages_of(changed_parts, [new for _, new in pairs])
            for name, old in before.items():
                new = after.get(name, (0.0,) * len(old))
                difference = max((abs(b - a) for a, b in zip(old, new, strict=True)), default=0.0)
                count, changed, total = count + 1, changed + (old != new), total + difference
                if old != new and len(examples) < _SHOWN:
                    examples.append(f"{name}: {_range(old)} → {_range(new)}")
        return ReplayCheck("credit", count, changed, tuple(examples), total / max(1, count))

    async def _evaluation(self, name: str) -> ReplayCheck:
        """Compare a recomputed evaluation of the stored episodes with the recorded one."""
        recorded = read_json(self.run_dir / "evaluations" / f"{name}.json")
        settings = self.recorded.recipe.evaluation
        tasks = {
            task.id: task for task in self.before.source.held_out(max(settings.episodes, settings.interval_episodes))
        }

        async def summary(member: str = "") -> Evaluation:
            groups: dict[str, list[Trajectory]] = {}
            file = member_file(f"evaluation-{name}", member)
            for trajectory in read_trajectories(self.run_dir / "trajectories" / f"{file}.jsonl"):
                groups.setdefault(trajectory.task_id, []).append(trajectory)
            stored = [Group(tasks[id], tuple(trajectories)) for id, trajectories in groups.items()]
            rescored = [await self.rescore_group(group) for group in stored]
            return summarize_episodes(rescored, temperature=settings.temperature)

        first, members = await summary(), {}
        for member, result in (recorded.get("members") or {}).items():
            own = first if member == self.before.member else await summary(member)
            members[member] = MemberResult.from_evaluation(result["seat"], own)
        recomputed = json.loads(json.dumps(replace(first, members=members).to_json()))
        different = [key for key in recorded if key != "spent" and not _equal(recorded[key], recomputed.get(key))]
        examples = tuple(f"{key}: {recorded[key]} → {recomputed.get(key)}" for key in different[:_SHOWN])
        change = abs(recomputed["success"] - recorded["success"])
        return ReplayCheck(f"evaluation ({name})", len(recorded), len(different), examples, change)

    async def _updates(self) -> ReplayCheck:
        """Replay all updates from the earliest checkpoint with recorded groups; compare metrics and final weights."""
        replayer = await self.from_checkpoint()
        done, last = replayer.done, max(self.record.consumed) + 1
        rows = {row["step"]: row for row in Journal(self.run_dir).read() if row["stage"] == self.stage}
        count, different = 0, []
        for update in range(done, last):
            metrics = await replayer.step()
            for key, value in metrics.items():
                was = rows.get(update + 1, {}).get(key)
                if _BY_THE_CLOCK.match(key) or was is None:
                    continue
                count += 1
                if was != value:
                    different.append(f"update {update + 1}, {key}: {was} → {value}")
        end = checkpoint_path(self.run_dir, self.warm_up_steps + last)
        if end.is_dir():
            count += 1
            policy, state, _ = self._loaded(end)
            pairs = {"": (replayer.assembly.policy, policy)}
            for name, each in replayer.assembly.members.items():
                if each.is_stored:
                    pairs[f" of {name}"] = (each.policy, state[MEMBERS][name]()[0])
            for of, (replayed, saved) in pairs.items():
                expected = _weights(saved)
                if not all(torch.equal(value, expected[name]) for name, value in _weights(replayed).items()):
                    different.append(f"the weights{of} after update {last} differ from those in {end.name}")
        return ReplayCheck(f"updates {done + 1} to {last}", count, len(different), tuple(different[:_SHOWN]))

    def _loaded(self, path: Path) -> tuple[Policy, dict[str, Any], Position]:
        settings = self.recorded.recipe.policy
        base = Path(settings.path) if settings.path is not None else None
        return load_checkpoint(path, trust_remote_code=settings.trust_remote_code, base_path=base)

    async def from_checkpoint(self, *, before: int | None = None) -> UpdateReplayer:
        """Start a replay of updates from a checkpoint, or from the initial policy of the run.

        Args:
            before: The last checkpoint with at most this number of updates is loaded; None: the earliest one. If the
                run started with reinforcement, the initial policy counts as a checkpoint with 0 updates.

        Raises:
            RunDirectoryError: There is no checkpoint to start from.
        """
        start = self._checkpoint(before)
        policy, optimizer, position, done = None, None, Position("", {}, 0), 0
        if start is not None:
            path, done = start
            policy, optimizer, position = await run_in_compute_thread(self._loaded, path)
        memory = position.memory if done else None
        parts = await self.learner_at(done, policy, memory, optimizer if done else None)
        return UpdateReplayer(self, *parts, position.version - done, done)

    async def learner_at(
        self, update: int, policy: Policy | None, memory: dict[str, Any] | None, state: dict[str, Any] | None
    ) -> tuple[RunComponents, Learner, ReinforcementSettings]:
        """Build the components, learner and settings of an update with the changes of the replay.

        Args:
            update: Number of the update, from 0.
            policy: The policy before the update; None: the one that the run started with.
            memory: State of the components of the method.
            state: State of the learner, with those of other members; None: new.
        """
        changed = self._changed(self.eras[self.era_at(update)].resolved)
        if state is not None:
            memory = (memory or {}) | {MEMBERS: state.get(MEMBERS, {})}
        assembly = await run_in_compute_thread(assemble, changed, policy, memory)
        settings = changed.recipe.reinforcement
        assert settings is not None  # there are updates
        warmed_up = checkpoint_path(self.run_dir, self.warm_up_steps) if self.warm_up_steps else None
        assembly.build_components("reward")  # a reward model that is trained in the run is a member
        learner = await run_in_compute_thread(build_stage_learner, assembly, settings, warmed_up)
        learners = learner.learners.values() if isinstance(learner, MemberLearner) else (learner,)
        if not all(isinstance(each, LocalLearner) for each in learners):
            named = changed.recipe.learner.name
            raise changed.error("learner", f'updates of "{named}" cannot be replayed; only those of "local" can')
        if state is not None:
            learner.load_state_dict(state)
        return assembly, learner, settings

    def _checkpoint(self, before: int | None) -> tuple[Path, int] | None:
        """Return (checkpoint folder, number of updates before it); None: the replay starts with the initial policy."""
        checkpoints = []
        for path in sorted((self.run_dir / "checkpoints").glob("step-??????")):
            done = int(path.name.removeprefix("step-")) - self.warm_up_steps
            if done >= 0 and (before is None or done <= before):
                checkpoints.append((path, done))
        if self.recorded.recipe.supervised is None and (before is None or not checkpoints):
            return None
        if not checkpoints:
            raise RunDirectoryError(f"{self.run_dir}: no checkpoint from which updates can be replayed")
        return checkpoints[0] if before is None else checkpoints[-1]


@dataclass(slots=True)
class UpdateReplayer:
    """Replays the updates of a run one by one with their recorded groups. Created by `RunReplay.from_checkpoint`."""

    replay: RunReplay
    """Replay of the run."""
    assembly: RunComponents
    """Components of the current update."""
    learner: Learner
    """Learner with the weights after the last replayed update."""
    settings: ReinforcementSettings
    """Settings of the stage."""
    base_version: int
    done: int
    """Number of replayed updates, including those before the checkpoint."""

    def local_learner(self, member: str) -> LocalLearner:
        """Return the learner of a trained member.

        Args:
            member: Name of the member; empty: the only model, or the first member.
        """
        learner = self.learner
        if isinstance(learner, MemberLearner):
            learner = learner.learners.get(member, learner.first)
        assert isinstance(learner, LocalLearner)  # checked in `learner_at`
        return learner

    async def step(self) -> dict[str, float]:
        """Run the next update with its recorded groups; return its metrics."""
        replay, update = self.replay, self.done
        if update and replay.era_at(update) != replay.era_at(update - 1):  # the recipe changed before this update
            policy, memory = self.assembly.policy, self.assembly.method.state()
            parts = await replay.learner_at(update, policy, memory, self.learner.state_dict())
            self.assembly, self.learner, self.settings = parts
        groups = [await replay.rescore_group(replay.load_group(number)) for number in replay.record.consumed[update]]
        numbers = replay.record.passed_over.get(update, [])
        passed_over = [await replay.rescore_group(replay.load_group(number)) for number in numbers]
        demonstrations = await sample_imitation(self.assembly, self.settings, update=update)
        before = [row for row in Journal(replay.run_dir).read() if row["step"] <= update]
        share = budget_fraction_spent(before, self.settings.budget)
        batch = UpdateBatch(tuple(groups), tuple(demonstrations.segments), self.base_version + update, share)
        method, seed = self.assembly.method, self.assembly.resolved.recipe.seed
        mixed = await replay.mixed_groups(method, self.settings, update)
        learned = partial(train_step, method, self.learner, batch, passed_over, mixed, seed=seed, update=update)
        stepped = await run_in_compute_thread(learned)
        await self.assembly.method.observe_step(stepped.outcome)
        self.learner.end_step()
        self.done += 1
        return stepped.metrics


def _rewards(groups: Sequence[Group], rescored: Sequence[Group]) -> ReplayCheck:
    pairs = [
        (old, new)
        for before, after in zip(groups, rescored, strict=True)
        for old, new in zip(before.trajectories, after.trajectories, strict=True)
    ]
    different = [(old, new) for old, new in pairs if _score_key(old.score) != _score_key(new.score)]
    failed = sum(old.score is None and (old.error or "").startswith(REWARD_FAILED) for old, _ in pairs)
    examples = tuple(
        f"{old.id}: {_format_score(old.score)} → {_format_score(new.score)}"
        f"{f': {find_failure_cause(new)}' if new.score is None else ''}"
        for old, new in different[:_SHOWN]
    )
    change = sum(abs(_value(new.score) - _value(old.score)) for old, new in different) / max(1, len(pairs))
    return ReplayCheck("rewards of training", len(pairs) - failed, len(different), examples, change, failed)


def _weights(policy: Policy) -> dict[str, torch.Tensor]:
    """Return the parameters of a model and its critic, by name."""
    critic = policy.critic.state_dict() if policy.critic is not None else {}
    return policy.model.state_dict() | {f"critic.{name}": value for name, value in critic.items()}


def advantages_of(assembly: RunComponents, groups: Sequence[Group]) -> dict[str, tuple[float, ...]]:
    """Compute the advantages of each trajectory that is trained on, by trajectory id: one value per token."""
    settings = assembly.resolved.recipe.reinforcement
    assert settings is not None  # there are updates
    columns = partial(batch_columns, assembly.learning_spec(settings), None)
    indexed = index_groups(groups, observations=settings.train_on_observations)
    credit = assign_credit(assembly.credit, indexed, len(groups), columns)
    advantages: dict[str, tuple[float, ...]] = {}
    for group in credit.by_group:
        for each in group:
            name = each.segment.trajectory_id
            advantages[name] = (*advantages.get(name, ()), *(each.segment.advantages or ()))
    return advantages


def is_credit_on_record(assembly: RunComponents) -> bool:
    """Return whether advantages can be computed from the record, without forward passes of a model."""
    reads = {name for _, function in assembly.credit.list_functions() for name in column_names(function)}
    return is_readable_from_record(reads, collect_columns(assembly.columns))


def refuse_damage(path: Path, content: bytes, good: int, line: int, torn: bool) -> None:
    """Raise an error if a file of a run is damaged before its last line; an incomplete last line is ignored.

    This is the callback `forgotten` of `RunRecord` for replays.

    Raises:
        RunDirectoryError: A line other than the last is damaged.
    """
    if not torn:
        raise RunDirectoryError(f"{path}:{line}: the line is damaged; later records cannot be read")


def _range(numbers: Sequence[float]) -> str:
    """Format advantages as `0.5` or `−0.5 to 0.5`; zeros of tokens that are not trained are ignored."""
    values = sorted({round(number, 6) for number in numbers if number}) or [0.0]
    return f"{values[0]:.6g}" if len(values) == 1 else f"{values[0]:.6g} to {values[-1]:.6g}"


def _score_key(score: Score | None) -> Any:
    return None if score is None else (score.value, dict(score.parts), score.turns, score.success)


def _value(score: Score | None) -> float:
    return 0.0 if score is None else score.value


def _format_score(score: Score | None) -> str:
    return "none" if score is None else f"{score.value:g}"


def _equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal; NaN equals NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
