"""Evaluations during training, each of a copy of the weights at its step.

Note:
    An evaluation can still be running when a checkpoint is due. The checkpoint waits for it, so that a resumed run has
    all results of an uninterrupted one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from whetstone.assembly.assembly import RunComponents
from whetstone.compute_thread import run_in_compute_thread
from whetstone.evaluation import Evaluation
from whetstone.inference import ENGINES, Engine, Member
from whetstone.policies import Policy, clone_trainable
from whetstone.record.run_directory import write_json
from whetstone.training.evaluation_loop import evaluate_policy, write_evaluation
from whetstone.training.kept import validation_path

_MOST_AT_ONCE = 2
"""Maximum number of evaluations that run concurrently."""


class BackgroundEvaluations:
    """Evaluations that run while a stage trains, each with a copy of the weights.

    Created by `SingleRun` for each stage.

    Args:
        assembly: Components of the run.
        run_dir: Run directory; results are written to `evaluations/STAGE-000010.json`.
        log: Receives one line with each result.
        on_result: Called with the stage, the step and the result of each evaluation on test tasks.
    """

    def __init__(
        self,
        assembly: RunComponents,
        run_dir: Path,
        *,
        log: Callable[[str], None],
        on_result: Callable[[str, int, Evaluation], None] = lambda stage, step, result: None,
    ) -> None:
        self.assembly, self.run_dir, self.log, self.on_result = assembly, run_dir, log, on_result
        self._running: dict[Path, asyncio.Task[None]] = {}

    async def start_evaluation(self, stage: str, step: int, *, validates: bool = False) -> None:
        """Start an evaluation of the current weights, unless its result file exists.

        The call returns immediately, unless two evaluations are running already.

        Args:
            stage: Name of the stage.
            step: Step after which the weights are evaluated.
            validates: Whether to use the validation tasks, to select a checkpoint (`kept.py`), instead of the first
                test tasks.
        """
        path = validation_path(self.run_dir, step)
        if not validates:
            path = self.run_dir / "evaluations" / f"{stage}-{step:06d}.json"
        if path.is_file():
            return
        while len(self._running) >= _MOST_AT_ONCE:
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
            self._collect()
        copied = await run_in_compute_thread(self._copy, step)
        evaluating = self._evaluate_copy(copied, path, stage, step, validates)
        self._running[path] = asyncio.create_task(evaluating)

    async def finish_pending(self) -> None:
        """Wait for the running evaluations, before a checkpoint is saved.

        Raises:
            Exception: The error of an evaluation that failed.
        """
        if self._running:
            await asyncio.wait(self._running.values())
            self._collect()

    async def close(self) -> None:
        """Cancel the running evaluations."""
        running, self._running = list(self._running.values()), {}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _collect(self) -> None:
        for path in [path for path, task in self._running.items() if task.done()]:
            self._running.pop(path).result()

    def _copy(self, step: int) -> RunComponents:
        """Return the components of the run with a copy of the weights of every trained member."""
        trained = {self.assembly.member: self.assembly.policy}
        trained |= {name: each.policy for name, each in self.assembly.trained.items()}
        copies = {name: replace(each, model=clone_trainable(each.model)) for name, each in trained.items()}
        members = {
            name: Member(name, partial(copies.__getitem__, name), engine=partial(self._engine, step))
            for name in [*copies][1:]
        }
        return self.assembly.with_components(policy=copies[self.assembly.member], members=members)

    def _engine(self, step: int, policy: Policy) -> Engine:
        recipe, sampled = self.assembly.resolved.recipe, self.assembly.with_components(policy=policy).sampled_model()
        policy = replace(policy, model=sampled)
        return ENGINES["local"](policy=policy, max_sequences=recipe.rollout.max_episodes, version=step)

    async def _evaluate_copy(self, assembly: RunComponents, path: Path, stage: str, step: int, validates: bool) -> None:
        recipe = assembly.resolved.recipe
        settings = recipe.evaluation
        engine = self._engine(step, assembly.policy)
        try:
            result, groups = await evaluate_policy(
                assembly,
                engine,
                episodes=settings.validation_episodes if validates else settings.interval_episodes,
                first=settings.episodes if validates else 0,
                samples=settings.samples,
                temperature=settings.temperature,
                seed=recipe.seed,
                every_member=True,
            )
        finally:
            await engine.close()
            for member in assembly.members.values():
                await member.close()
        folder, name = (
            (path.parent, path.stem) if validates else (self.run_dir / "trajectories", f"evaluation-{path.stem}")
        )
        write_evaluation(folder, name, groups, assembly.member)
        write_json(path, result.to_json())
        if not validates:
            self.on_result(stage, step, result)
        on = "validation success" if validates else "success"
        self.log(f"after step {step}: {on} {result.success:.1%} of {result.episodes} episodes")
