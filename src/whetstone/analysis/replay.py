"""What would the record of a run come to, computed again? Rewards, credit, evaluations and updates, without a tool.

Nothing is sampled and nothing is written. Under the run's own recipe everything must come out as it is on record, to
the last bit; under a changed one the differences are the answer.

Easy to get wrong: an update is a function of the weights before it, so updates can be made again only from a
checkpoint on, all of them, in order.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from whetstone.algorithms import columns_of
from whetstone.assembly.assembly import Assembly, assemble
from whetstone.assembly.members import learner_for
from whetstone.assembly.own_data import with_learning
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import RunDirectoryError
from whetstone.evaluation import evaluation_of
from whetstone.learning.columns import by_name, from_record
from whetstone.learning.credit import give_credit
from whetstone.learning.learner import LocalLearner, batch_columns
from whetstone.learning.spec import UpdateBatch
from whetstone.learning.token_index import index_groups
from whetstone.policies import Policy
from whetstone.recipe import ReinforcementSettings, Resolved
from whetstone.record.checkpoint import Position, checkpoint_path, load_checkpoint
from whetstone.record.reader import RunRecord
from whetstone.record.run_directory import read_json, run_eras, run_recipe
from whetstone.reporting import Journal, read_trajectories
from whetstone.rewards import REWARD_FAILED, compared, scored
from whetstone.rollout import Method
from whetstone.training.budget import share_spent
from whetstone.training.group_mixer import GroupMixer
from whetstone.training.supervised import first_task, imitated
from whetstone.training.train_step import train_step
from whetstone.trajectory import Group, Score, Task, Trajectory

_SHOWN = 3
_BY_THE_CLOCK = ("time/", "throughput/", "memory/")


@dataclass(frozen=True, slots=True)
class ReplayCheck:
    """One thing that was computed again."""

    what: str
    count: int
    """How many numbers or trajectories were compared."""
    changed: int
    """How many came out differently."""
    examples: tuple[str, ...] = ()
    """The first few of those."""
    mean_change: float = 0.0
    """Of the absolute difference, over all that were compared."""
    left_out: int = 0
    """How many could not be compared: their reward failed when it was asked, and how they ended is not known."""


class Replay:
    """A run, computed again.

    Args:
        run_dir: Of a run that was made by `train`.
        changes: Keys of the recipe that are different this time, such as `reward=my.module:mine`.

    Raises:
        RunDirectoryError: There is no run in it.
        RecipeError: A change cannot be meant.
    """

    def __init__(self, run_dir: Path, changes: Sequence[str] = ()) -> None:
        self.run_dir = run_dir
        self.eras = [replace(era, resolved=with_learning(era.resolved)) for era in run_eras(run_dir)]
        made = run_recipe(run_dir)
        self.stage = next(reversed(made.recipe.own_stages), "reinforcement")
        """The stage its groups are of."""
        self.learned = made.recipe.sampling is None
        """Whether there were updates, and not episodes alone."""
        self.recorded = with_learning(made)
        self.overrides = changes
        self.changed = self._changed(self.recorded)
        self.record = RunRecord(run_dir, forgotten=refuse_damage)
        self.before, self.after = assemble(self.recorded), assemble(self.changed).check()
        self._pairs: dict[int, tuple[Assembly, Assembly]] = {len(self.eras) - 1: (self.before, self.after)}
        warm_up = self.recorded.recipe.supervised
        self.warm_up_steps = warm_up.steps if warm_up else 0
        self.first_task = first_task(self.recorded.recipe)

    def _changed(self, resolved: Resolved) -> Resolved:
        """Return a recipe of the run with the changes of the replay; updates are repeated in one process."""
        return resolved.with_overrides(self.overrides).with_changes({"scale": None})

    def era_at(self, update: int) -> int:
        """Return the index of the era of an update (see `Era`); updates count from 0."""
        return next(number for number, era in enumerate(self.eras) if era.contains(self.stage, update))

    def assemblies_at(self, update: int) -> tuple[Assembly, Assembly]:
        """Return the parts of an update: by the recipe that it had, and with the changes of the replay."""
        era = self.era_at(update)
        if era not in self._pairs:
            resolved = self.eras[era].resolved
            self._pairs[era] = (assemble(resolved), assemble(self._changed(resolved)))
        return self._pairs[era]

    async def everything(self, *, updates: bool = False) -> AsyncIterator[ReplayCheck]:
        """Rewards, credit, evaluations; and, where asked for, updates.

        Raises:
            RunDirectoryError: Something on record is damaged, or cannot be computed again.
        """
        numbers = [number for update in sorted(self.record.consumed) for number in self.record.consumed[update]]
        groups = [self.group(number) for number in numbers]
        if updates and not (groups and self.learned):
            raise RunDirectoryError(f"{self.run_dir}: no update is on record, so none can be made again")
        if groups:
            rescored = [await self.rescored(group) for group in groups]
            yield _rewards(groups, rescored)
            if all(is_credit_on_record(part) for update in self.record.consumed for part in self.assemblies_at(update)):
                yield self._credit(groups, rescored)
        folder = self.run_dir / "evaluations"
        evaluations = sorted(folder.glob("*.json")) if folder.is_dir() else []
        if not groups and not evaluations:
            raise RunDirectoryError(f"{self.run_dir}: nothing is on record that could be computed again")
        for path in evaluations:
            yield await self._evaluation(path.stem)
        if updates and groups:
            yield await self._updates()

    def group(self, number: int) -> Group:
        """A group on record."""
        chosen = self.record.tasks.get(number, self.first_task + number)
        return self.record.load(number, chosen if isinstance(chosen, Task) else self.before.source.task(chosen))

    async def rescored(self, group: Group) -> Group:
        """With the rewards of the changed recipe; what had none, since its ending is not valid, has none again."""
        again: list[Trajectory] = []
        for trajectory in group.trajectories:
            if trajectory.score is not None:
                trajectory = await scored(self.after.reward, trajectory, group.task)
            again.append(trajectory)
        return replace(group, trajectories=await compared(self.after.reward, again, group.task))

    def _credit(self, groups: Sequence[Group], rescored: Sequence[Group]) -> ReplayCheck:
        """Advantages by the recorded rewards and recipe, and by the new ones, update by update."""
        by_number = {group.number: (group, new) for group, new in zip(groups, rescored, strict=True)}
        count = changed = 0
        total = 0.0
        examples: list[str] = []
        for update in sorted(self.record.consumed):
            held = [by_number[number] for number in self.record.consumed[update]]
            recorded, changed_parts = self.assemblies_at(update)
            before = advantages_of(recorded, [old for old, _ in held])
            after = advantages_of(changed_parts, [new for _, new in held])
            for name, old in before.items():
                new = after.get(name, (0.0,) * len(old))
                apart = max((abs(b - a) for a, b in zip(old, new, strict=True)), default=0.0)
                count, changed, total = count + 1, changed + (old != new), total + apart
                if old != new and len(examples) < _SHOWN:
                    examples.append(f"{name}: {_range(old)} → {_range(new)}")
        return ReplayCheck("credit", count, changed, tuple(examples), total / max(1, count))

    async def _evaluation(self, name: str) -> ReplayCheck:
        """Of the kept episodes, against what the run said of them."""
        told = read_json(self.run_dir / "evaluations" / f"{name}.json")
        settings = self.recorded.recipe.evaluation
        tasks = {
            task.id: task for task in self.before.source.held_out(max(settings.episodes, settings.interval_episodes))
        }
        groups: dict[str, list[Trajectory]] = {}
        for trajectory in read_trajectories(self.run_dir / "trajectories" / f"evaluation-{name}.jsonl"):
            groups.setdefault(trajectory.task_id, []).append(trajectory)
        kept = [Group(tasks[id], tuple(trajectories)) for id, trajectories in groups.items()]
        rescored = [await self.rescored(group) for group in kept]
        again = json.loads(json.dumps(evaluation_of(rescored, temperature=settings.temperature).to_json()))
        different = [key for key in told if key != "spent" and not _same(told[key], again.get(key))]
        examples = tuple(f"{key}: {told[key]} → {again.get(key)}" for key in different[:_SHOWN])
        change = abs(again["success"] - told["success"])
        return ReplayCheck(f"evaluation ({name})", len(told), len(different), examples, change)

    async def _updates(self) -> ReplayCheck:
        """All updates from the earliest checkpoint on, with their recorded groups: metrics, and weights at the end."""
        again = await self.from_checkpoint()
        done, last = again.done, max(self.record.consumed) + 1
        told = {row["step"]: row for row in Journal(self.run_dir).read() if row["stage"] == self.stage}
        count, different = 0, []
        for update in range(done, last):
            metrics = await again.step()
            for key, value in metrics.items():
                was = told.get(update + 1, {}).get(key)
                if key.startswith(_BY_THE_CLOCK) or was is None:
                    continue
                count += 1
                if was != value:
                    different.append(f"update {update + 1}, {key}: {was} → {value}")
        end = checkpoint_path(self.run_dir, self.warm_up_steps + last)
        if end.is_dir():
            count += 1
            kept, ours = self._loaded(end)[0].model.state_dict(), again.assembly.policy.model.state_dict()
            if not all(torch.equal(value, kept[name]) for name, value in ours.items()):
                different.append(f"the weights behind update {last} are not those in {end.name}")
        return ReplayCheck(f"updates {done + 1} to {last}", count, len(different), tuple(different[:_SHOWN]))

    def _loaded(self, path: Path) -> tuple[Policy, dict[str, Any], Position]:
        settings = self.recorded.recipe.policy
        base = Path(settings.path) if settings.path is not None else None
        return load_checkpoint(path, trust_remote_code=settings.trust_remote_code, base_path=base)

    async def from_checkpoint(self, *, before: int | None = None) -> UpdateReplayer:
        """Updates to be made again, from the earliest checkpoint, or the last with no more than `before` updates.
        Where the run began with reinforcement, that is the policy it began with.

        Raises:
            RunDirectoryError: There is none.
        """
        found = self._checkpoint(before)
        policy, optimizer, position, done = None, None, Position("", {}, 0), 0
        if found is not None:
            path, done = found
            policy, optimizer, position = await run_in_compute_thread(self._loaded, path)
        memory = position.memory if done else None
        made = await self.learner_at(done, policy, memory, optimizer if done else None)
        return UpdateReplayer(self, *made, position.version - done, done)

    async def learner_at(
        self, update: int, policy: Policy | None, memory: dict[str, Any] | None, state: dict[str, Any] | None
    ) -> tuple[Assembly, LocalLearner, ReinforcementSettings]:
        """Return the parts, the learner and the settings of an update with the changes of the replay.

        Args:
            policy: The policy before the update; None: the one that the run started with.
            memory: State of the components of the method.
            state: State of the learner; None: new.
        """
        changed = self._changed(self.eras[self.era_at(update)].resolved)
        if changed.recipe.policies:
            raise changed.error("policies", "updates of several members cannot be repeated")
        assembly = await run_in_compute_thread(assemble, changed, policy, memory)
        settings = changed.recipe.reinforcement
        assert settings is not None  # there are updates
        warmed_up = checkpoint_path(self.run_dir, self.warm_up_steps) if self.warm_up_steps else None
        learner = await run_in_compute_thread(learner_for, assembly, settings, warmed_up)
        if not isinstance(learner, LocalLearner):
            named = changed.recipe.learner.name
            raise changed.error("learner", f'updates of "{named}" cannot be made again; of "local" they can')
        if state is not None:
            learner.load_state_dict(state)
        return assembly, learner, settings

    def _checkpoint(self, before: int | None) -> tuple[Path, int] | None:
        """(checkpoint, updates in it); None: the beginning of the run"""
        found = []
        for path in sorted((self.run_dir / "checkpoints").glob("step-??????")):
            done = int(path.name.removeprefix("step-")) - self.warm_up_steps
            if done >= 0 and (before is None or done <= before):
                found.append((path, done))
        if self.recorded.recipe.supervised is None and (before is None or not found):
            return None
        if not found:
            raise RunDirectoryError(f"{self.run_dir}: has no checkpoint from which updates could be made again")
        return found[0] if before is None else found[-1]


@dataclass(slots=True)
class UpdateReplayer:
    """A run's updates, made again one by one with the groups each had."""

    replay: Replay
    assembly: Assembly
    learner: LocalLearner
    settings: ReinforcementSettings
    base_version: int
    done: int

    async def step(self) -> dict[str, float]:
        """The next update, as metrics."""
        replay, update = self.replay, self.done
        if update and replay.era_at(update) != replay.era_at(update - 1):  # the recipe changed before this update
            policy, memory = self.assembly.policy, self.assembly.method.state()
            made = await replay.learner_at(update, policy, memory, self.learner.state_dict())
            self.assembly, self.learner, self.settings = made
        groups = [await replay.rescored(replay.group(number)) for number in replay.record.consumed[update]]
        numbers = replay.record.passed_over.get(update, [])
        passed_over = [await replay.rescored(replay.group(number)) for number in numbers]
        shown = await imitated(self.assembly, self.settings, update=update)
        before = [row for row in Journal(replay.run_dir).read() if row["step"] <= update]
        share = share_spent(before, self.settings.budget)
        batch = UpdateBatch(tuple(groups), tuple(shown.segments), self.base_version + update, share)
        method, seed = self.assembly.method, self.assembly.resolved.recipe.seed
        mixed = await mixed_groups(method, self.settings, replay.record, update)
        learned = partial(train_step, method, self.learner, batch, passed_over, mixed, seed=seed, update=update)
        stepped = await run_in_compute_thread(learned)
        await self.assembly.method.observe_step(stepped.heard)
        self.learner.end_step()
        self.done += 1
        return stepped.metrics


async def mixed_groups(
    method: Method, settings: ReinforcementSettings, record: RunRecord, update: int
) -> Mapping[str, Sequence[Group]]:
    """Return the groups of other sources that an update on record took."""
    mixer = GroupMixer(method.sources, sampled=settings.tasks_per_step)
    return (await mixer.take(update, record.mixed)).groups


def _rewards(groups: Sequence[Group], rescored: Sequence[Group]) -> ReplayCheck:
    pairs = [
        (old, new)
        for before, after in zip(groups, rescored, strict=True)
        for old, new in zip(before.trajectories, after.trajectories, strict=True)
    ]
    different = [(old, new) for old, new in pairs if _said(old.score) != _said(new.score)]
    failed = sum(old.score is None and (old.error or "").startswith(REWARD_FAILED) for old, _ in pairs)
    examples = tuple(f"{old.id}: {_shown(old.score)} → {_shown(new.score)}" for old, new in different[:_SHOWN])
    change = sum(abs(_value(new.score) - _value(old.score)) for old, new in different) / max(1, len(pairs))
    return ReplayCheck("rewards of training", len(pairs) - failed, len(different), examples, change, failed)


def advantages_of(assembly: Assembly, groups: Sequence[Group]) -> dict[str, tuple[float, ...]]:
    """Return the advantages of each trajectory that is trained on, token by token."""
    settings = assembly.resolved.recipe.reinforcement
    assert settings is not None  # there are updates
    columns = partial(batch_columns, assembly.learning_spec(settings), None)
    held = index_groups(groups, observations=settings.train_on_observations)
    given = give_credit(assembly.credit, held, len(groups), columns)
    found: dict[str, tuple[float, ...]] = {}
    for group in given.by_group:
        for each in group:
            name = each.segment.trajectory_id
            found[name] = (*found.get(name, ()), *(each.segment.advantages or ()))
    return found


def is_credit_on_record(assembly: Assembly) -> bool:
    """Return whether advantages can be computed from the record, without forward passes of a model."""
    reads = {name for _, function in assembly.credit.every() for name in columns_of(function)}
    return from_record(reads, by_name(assembly.columns))


def refuse_damage(path: Path, content: bytes, good: int, line: int, torn: bool) -> None:
    """Nothing is computed again of a record whose middle is damaged; a line torn by a kill never happened.

    Raises:
        RunDirectoryError: It is damaged elsewhere.
    """
    if not torn:
        raise RunDirectoryError(f"{path}:{line}  is damaged, so what is behind it is not known")


def _range(numbers: Sequence[float]) -> str:
    """`0.5`, or `−0.5 to 0.5`, of advantages; those of tokens that are not trained are 0."""
    said = sorted({round(number, 6) for number in numbers if number}) or [0.0]
    return f"{said[0]:.6g}" if len(said) == 1 else f"{said[0]:.6g} to {said[-1]:.6g}"


def _said(score: Score | None) -> Any:
    return None if score is None else (score.value, dict(score.parts), score.turns, score.success)


def _value(score: Score | None) -> float:
    return 0.0 if score is None else score.value


def _shown(score: Score | None) -> str:
    return "none" if score is None else f"{score.value:g}"


def _same(ours: Any, theirs: Any) -> bool:
    """Equal, NaN to NaN."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return ours == theirs or (math.isnan(ours) and math.isnan(theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return bool(ours == theirs)
