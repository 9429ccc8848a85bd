"""What is a run? Evaluate, imitate, evaluate, reinforce, evaluate, and write down all of it.

Easy to get wrong: after a kill, what the last checkpoint does not know never happened. Metrics are rewound to
it, and everything that comes next is a function of the recipe and the step, so the run goes on as it would have.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from whetstone.arithmetic_thread import in_arithmetic_thread
from whetstone.errors import NonFiniteError
from whetstone.policies import Policy, has_adapters, load_policy
from whetstone.recipe import OptimizerSettings, Resolved, TrainingSettings
from whetstone.reporting import Journal, Progress, Stage, write_report, write_trajectories
from whetstone.rollout import Collector
from whetstone.training.assembly import assemble
from whetstone.training.checkpoint import (
    Position,
    checkpoint_path,
    latest_checkpoint,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from whetstone.training.learner import Learner
from whetstone.training.run_directory import claimed, read_json, write_json
from whetstone.training.stages import evaluate, reinforcement_step, supervised_step
from whetstone.trajectory import Group, Trajectory

_KEPT_CHECKPOINTS = 2
"""Beside the one at the end of the warm-up."""


def train(
    resolved: Resolved, run_dir: Path, *, resume: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Run all stages of a recipe, and its ablations, into `run_dir`. Returns what is in `summary.json`.

    Args:
        resume: Go on with the run in `run_dir` from its last checkpoint; a finished one is only reported.

    Raises:
        WhetstoneError: A recipe, file or folder is wrong, or something could not be saved.
    """
    progress = progress or Progress()
    with claimed(run_dir, resolved, resume=resume):
        summary = read_json(run_dir / "summary.json") if resume else None
        if summary is None:
            summary = asyncio.run(_Run(resolved, run_dir, progress).play())
            write_json(run_dir / "summary.json", summary)
        for name, changes in resolved.recipe.ablations.items():
            if name in summary["ablations"]:
                continue
            progress.say(f"ablation: {name}  ({', '.join(f'{k}={v}' for k, v in changes.items())})")
            variant = resolved.with_changes({"ablations": None, **changes})
            there = run_dir / "ablations" / name
            outcome = train(variant, there, resume=(there / "recipe.yaml").is_file(), progress=progress)
            seconds = sum(outcome["seconds"].values())
            summary["ablations"][name] = {"after": outcome["after"], "overrides": changes, "seconds": seconds}
            write_json(run_dir / "summary.json", summary)
        write_report(run_dir)
    return dict(summary)


class _Run:
    """One run under way."""

    def __init__(self, resolved: Resolved, run_dir: Path, progress: Progress) -> None:
        self.resolved, self.run_dir, self.progress = resolved, run_dir, progress
        self.recipe = resolved.recipe
        self.journal = Journal(run_dir)
        self.position = Position("", {}, 0)
        self.optimizer: dict[str, Any] | None = None
        warm_up = self.recipe.supervised
        self.warmed_up = checkpoint_path(run_dir, warm_up.steps) if warm_up is not None else None
        self.shown: Stage | None = None

    async def play(self) -> dict[str, Any]:
        """All stages from where the run stands; its summary."""
        self.assembly = await in_arithmetic_thread(lambda: assemble(self.resolved, self._restored()))
        self.engine = await in_arithmetic_thread(self.assembly.engine)
        await self._publish(self.position.version)
        try:
            if not self.position.done:
                await self._evaluate("untrained")
            if self.recipe.supervised is not None:
                await self._stage("supervised", self.recipe.supervised, self._supervised_step)
            if self.recipe.training is not None:
                await self._stage("reinforcement", self.recipe.training, self._reinforcement_step)
        finally:
            await self.engine.close()
        return self._summary()

    def _restored(self) -> Policy | None:
        """The policy of the last checkpoint, with metrics rewound to it; None to begin at the beginning."""
        path = latest_checkpoint(self.run_dir)
        policy = None
        if path is not None:
            policy, self.optimizer, self.position = load_checkpoint(path)
            self.progress.say(f"going on after step {self.position.steps} ({path})")
        self.journal.rewind(self.position.done)
        return policy

    async def _stage(
        self,
        name: str,
        settings: OptimizerSettings,
        step: Callable[[Learner, int], Awaitable[tuple[dict[str, float], list[Trajectory]]]],
    ) -> None:
        """The steps of a stage that are not done, a checkpoint now and then, and an evaluation behind it."""
        done = self.position.done.get(name, 0)
        if self.position.stage not in ("", name) and name in self.position.done:
            return  # a later stage is under way
        if done < settings.steps:
            learner = await in_arithmetic_thread(self._learner, settings)
            if done and self.optimizer is not None:
                learner.load_state_dict(self.optimizer)
            with self.progress.stage(name, settings.steps, done=done) as shown:
                self.shown = shown
                for number in range(done, settings.steps):
                    began = time.perf_counter()
                    try:
                        metrics, trajectories = await step(learner, number)
                    except NonFiniteError as error:
                        path = await in_arithmetic_thread(self._save, learner)
                        raise NonFiniteError(f"step {number + 1} of {name}: {error}. The state is in {path}") from None
                    self._record(name, number + 1, metrics, trajectories, time.perf_counter() - began)
                    shown.advance(metrics)
                    if (number + 1) % settings.checkpoint_every == 0 or number + 1 == settings.steps:
                        self._save(learner)
        await self._evaluate(name)

    def _record(
        self, stage: str, step: int, metrics: dict[str, float], trajectories: list[Trajectory], seconds: float
    ) -> None:
        spent = {**self.position.seconds, stage: self.position.seconds.get(stage, 0.0) + seconds}
        done = {**self.position.done, stage: step}
        self.position = replace(self.position, stage=stage, done=done, seconds=spent, version=self.engine.version)
        metrics["time/elapsed_seconds"] = sum(spent.values())
        self.journal.record(stage, step, metrics)
        if stage == "reinforcement":  # demonstrations can be made again at any time
            write_trajectories(self.run_dir / "trajectories" / f"step-{step:06d}.jsonl", trajectories)

    def _save(self, learner: Learner) -> Path:
        path = save_checkpoint(self.run_dir, self.assembly.policy, learner.state_dict(), self.position)
        keep = {self.warmed_up} if self.warmed_up is not None else set()
        prune_checkpoints(self.run_dir, keep=keep, last=_KEPT_CHECKPOINTS)
        return path

    async def _supervised_step(self, learner: Learner, step: int) -> tuple[dict[str, float], list[Trajectory]]:
        assert self.recipe.supervised is not None
        metrics, shown = await supervised_step(self.assembly, learner, self.recipe.supervised, step=step)
        await self._publish(self.engine.version + 1)
        return metrics, shown

    async def _reinforcement_step(self, learner: Learner, step: int) -> tuple[dict[str, float], list[Trajectory]]:
        assert self.recipe.training is not None
        warm_up = self.recipe.supervised
        metrics, groups = await reinforcement_step(
            self.assembly,
            learner,
            self.engine,
            self.recipe.training,
            step=step,
            first_task=warm_up.steps * warm_up.batch_size if warm_up else 0,
            watched=self._watched,
        )
        return metrics, _flat(groups)

    def _watched(self, collector: Collector) -> None:
        if self.shown is not None:
            self.shown.watch(lambda: collector.status().line())

    def _learner(self, settings: OptimizerSettings) -> Learner:
        """A learner for a stage, with the policy reinforcement began with, frozen, where the recipe holds on to it."""
        policy, reference = self.assembly.policy, None
        wanted = isinstance(settings, TrainingSettings) and settings.reference_kl > 0
        if wanted and not (has_adapters(policy.model) and self.warmed_up is None):
            began = load_policy(self.warmed_up) if self.warmed_up is not None else assemble(self.resolved).policy
            reference = began.model.requires_grad_(False)
        return Learner(policy, settings, reference=reference)

    async def _publish(self, version: int) -> None:
        await self.engine.load_weights(dict(self.assembly.policy.model.named_parameters()), version)

    async def _evaluate(self, name: str) -> None:
        """Success now, kept in `evaluations/`; one that was made before is not made again."""
        path = self.run_dir / "evaluations" / f"{name}.json"
        if path.is_file():
            return
        settings = self.recipe.evaluation
        count = len(self.assembly.source.held_out(settings.episodes)) * settings.samples
        with self.progress.stage(f"evaluation ({name})", count) as shown:
            self.shown = shown
            came_to, groups = await evaluate(
                self.assembly,
                self.engine,
                episodes=settings.episodes,
                samples=settings.samples,
                temperature=settings.temperature,
                seed=self.recipe.seed,
                heard=lambda group: shown.advance({}, by=len(group.trajectories)),
                watched=self._watched,
            )
        write_trajectories(self.run_dir / "trajectories" / f"evaluation-{name}.jsonl", _flat(groups))
        write_json(path, came_to.to_json())
        self.progress.say(f"{name}: {headline(came_to.to_json())}")

    def _summary(self) -> dict[str, Any]:
        made = {}
        for name in ("untrained", "supervised", "reinforcement"):
            found = read_json(self.run_dir / "evaluations" / f"{name}.json")
            if found is not None:
                made[name] = found
        first, last = next(iter(made.values())), list(made.values())[-1]
        return {
            "recipe": self.resolved.name,
            "title": self.recipe.title or self.resolved.name,
            "seed": self.recipe.seed,
            "before": first,
            "after": last,
            "evaluations": made,
            "ablations": {},
            "seconds": self.position.seconds,
            "throughput": _throughput(self.journal.read()),
            "parameters": self.assembly.policy.parameters,
            "policy": self.recipe.policy.path or "tiny, built from nothing",
        }


def headline(evaluation: Mapping[str, Any]) -> str:
    """`success 71.2 % (95 % interval 67.1 to 75.0, 500 episodes)`"""
    low, high = evaluation["interval"]
    success, episodes = 100 * evaluation["success"], evaluation["episodes"]
    return f"success {success:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}, {episodes} episodes)"


def _flat(groups: list[Group]) -> list[Trajectory]:
    return [trajectory for group in groups for trajectory in group.trajectories]


def _throughput(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Mean tokens per second of each stage."""
    rates: dict[str, list[float]] = {}
    for row in rows:
        value = row.get("throughput/tokens_per_second")
        if value is not None:
            rates.setdefault(row["stage"], []).append(value)
    return {stage: sum(values) / len(values) for stage, values in rates.items()}


def final_policy(run_dir: Path) -> Policy | None:
    """The policy of a run's last checkpoint; None before the first."""
    path = latest_checkpoint(run_dir)
    return load_checkpoint(path)[0] if path is not None else None
