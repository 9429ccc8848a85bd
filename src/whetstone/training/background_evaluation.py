"""How does an agent do while it learns? Evaluations beside training, each of a copy of the weights as they were.

Easy to get wrong: an evaluation that waits for nothing may still be under way when a checkpoint is made. Before one is
made those under way are waited for, so that a run which goes on from it has every number it would have had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from whetstone.assembly.assembly import Assembly
from whetstone.compute_thread import run_in_compute_thread
from whetstone.evaluation import Evaluation
from whetstone.inference import ENGINES
from whetstone.policies import clone_trainable
from whetstone.record.run_directory import write_json
from whetstone.reporting import write_trajectories
from whetstone.training.evaluating import evaluate
from whetstone.training.kept import validation_path

_MOST_AT_ONCE = 2


class BackgroundEvaluations:
    """Evaluations under way.

    Args:
        run_dir: They are written to `evaluations/` there, as `STAGE-000010.json`.
        say: Told what each came to.
        heard: Told of each (the stage, the step, what it came to).
    """

    def __init__(
        self,
        assembly: Assembly,
        run_dir: Path,
        *,
        say: Callable[[str], None],
        heard: Callable[[str, int, Evaluation], None] = lambda stage, step, came_to: None,
    ) -> None:
        self.assembly, self.run_dir, self.say, self.heard = assembly, run_dir, say, heard
        self._running: dict[Path, asyncio.Task[None]] = {}

    async def begin(self, stage: str, step: int, *, validates: bool = False) -> None:
        """Evaluate the weights as they are now; returns at once unless two evaluations are behind already. One that was
        made before is not made again.

        Args:
            validates: Whether to evaluate on validation tasks, for `kept.py`, instead of the first test tasks.
        """
        path = validation_path(self.run_dir, step)
        if not validates:
            path = self.run_dir / "evaluations" / f"{stage}-{step:06d}.json"
        if path.is_file():
            return
        while len(self._running) >= _MOST_AT_ONCE:
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
            self._collect()
        model = await run_in_compute_thread(clone_trainable, self.assembly.policy.model)
        policy = replace(self.assembly.policy, model=model)
        evaluating = self._made(self.assembly.with_components(policy=policy), path, stage, step, validates)
        self._running[path] = asyncio.create_task(evaluating)

    async def settle(self) -> None:
        """Wait for those under way.

        Raises:
            Exception: One failed.
        """
        if self._running:
            await asyncio.wait(self._running.values())
            self._collect()

    async def close(self) -> None:
        """Give up those under way."""
        running, self._running = list(self._running.values()), {}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _collect(self) -> None:
        for path in [path for path, task in self._running.items() if task.done()]:
            self._running.pop(path).result()

    async def _made(self, assembly: Assembly, path: Path, stage: str, step: int, validates: bool) -> None:
        recipe = assembly.resolved.recipe
        settings = recipe.evaluation
        policy = replace(assembly.policy, model=assembly.sampled_model())
        engine = ENGINES["local"](policy=policy, max_sequences=recipe.rollout.max_in_flight, version=step)
        try:
            came_to, groups = await evaluate(
                assembly,
                engine,
                episodes=settings.validation_episodes if validates else settings.interval_episodes,
                first=settings.episodes if validates else 0,
                samples=settings.samples,
                temperature=settings.temperature,
                seed=recipe.seed,
            )
        finally:
            await engine.close()
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        folder, name = (
            (path.parent, path.stem) if validates else (self.run_dir / "trajectories", f"evaluation-{path.stem}")
        )
        write_trajectories(folder / f"{name}.jsonl", trajectories)
        write_json(path, came_to.to_json())
        if not validates:
            self.heard(stage, step, came_to)
        on = "validation success" if validates else "success"
        self.say(f"after step {step}: {on} {came_to.success:.1%} of {came_to.episodes} episodes")
