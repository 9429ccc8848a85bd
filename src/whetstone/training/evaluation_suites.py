"""Evaluation suites (`evaluation.suites`): the policy on further tasks, before training and after every stage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whetstone.assembly.assembly import RunComponents, assemble
from whetstone.errors import WhetstoneError, did_you_mean
from whetstone.evaluation import Evaluation
from whetstone.evaluation.continual_learning import compute_transfer, summarize_transfer
from whetstone.inference import Engine
from whetstone.recipe import Resolved
from whetstone.recipe.settings import SuiteSettings
from whetstone.record.run_directory import read_json, write_json
from whetstone.rewards.protocol import close_reward
from whetstone.training.evaluation_loop import evaluate_policy, write_evaluation
from whetstone.training.run_summary import run_headline

UNTRAINED = "untrained"


@dataclass(frozen=True, slots=True)
class EvaluationSuites:
    """Suites of a run, with the components of each."""

    assemblies: Mapping[str, RunComponents]
    """Components by name of the suite; they share the policy of the run."""
    run_dir: Path
    """Run directory."""

    async def evaluate(
        self,
        engine: Engine,
        stage: str,
        *,
        log: Callable[[str], None],
        run: Callable[[Awaitable[Any]], Awaitable[Any]],
    ) -> None:
        """Evaluate all suites after a stage, and store the results; those that exist are not repeated.

        Args:
            engine: Engine that samples from the policy.
            stage: Name of the stage, or `untrained`.
            log: Receives a line per suite.
            run: Runs an evaluation until it ends or the run is interrupted.
        """
        for name, assembly in self.assemblies.items():
            path = suite_file(self.run_dir, name, stage)
            if path.is_file():
                continue
            recipe = assembly.resolved.recipe
            settings = recipe.evaluation
            playing = evaluate_policy(
                assembly,
                engine,
                episodes=settings.episodes,
                samples=settings.samples,
                temperature=settings.temperature,
                seed=recipe.seed,
            )
            result: Evaluation
            result, groups = await run(playing)
            folder = self.run_dir / "trajectories" / "suites" / name
            folder.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_evaluation(folder, f"evaluation-{stage}", groups, assembly.member)
            write_json(path, result.to_json())
            log(f"suite {name} ({stage}): {run_headline(result.to_json())}")

    async def close(self) -> None:
        """Close the rewards and models of all suites."""
        for assembly in self.assemblies.values():
            await close_reward(assembly.reward)
            for member in assembly.members.values():
                await member.close()


def build_suites(resolved: Resolved, assembly: RunComponents, run_dir: Path) -> EvaluationSuites:
    """Build and check the components of all suites of a recipe.

    Args:
        resolved: Recipe of the run.
        assembly: Components of the run, whose policy and method are evaluated.
        run_dir: Run directory.

    Raises:
        WhetstoneError: If a suite is invalid; the message names it.
    """
    built = {}
    for name, suite in resolved.recipe.evaluation.suites.items():
        changed = suite_recipe(resolved, name, suite)
        try:
            parts = assemble(changed, assembly.policy, say=assembly.say).check()
        except WhetstoneError as error:
            raise type(error)(f"evaluation.suites.{name}: {error}") from None
        built[name] = parts.with_components(method=assembly.method)
    return EvaluationSuites(built, run_dir)


def suite_recipe(resolved: Resolved, name: str, suite: SuiteSettings) -> Resolved:
    """Return the recipe of a suite: that of the run with the keys of the suite.

    Raises:
        RecipeError: If a key is not part of tasks, environment and reward, or the suite changes nothing.
    """
    key = f"evaluation.suites.{name}"
    if not suite.changed_keys:
        raise resolved.error(key, "changes nothing; set tasks, environment or reward")
    for changed in suite.changed_keys:
        if changed.partition(".")[0] not in ("tasks", "environment", "reward"):
            raise resolved.error(f"{key}.{changed}", "a suite changes tasks, environment and reward only")
    episodes = {} if suite.episodes is None else {"evaluation.episodes": suite.episodes}
    return resolved.with_changes({"evaluation.suites": {}, "ablations": None, **episodes, **suite.changed_keys})


def suite_file(run_dir: Path, suite: str, stage: str) -> Path:
    """Return the path of the result of a suite after a stage."""
    return run_dir / "evaluations" / "suites" / suite / f"{stage}.json"


def find_suite_stage(resolved: Resolved, name: str, stages: Sequence[str]) -> str | None:
    """Return the stage that trains on the tasks of a suite; None if the suite names none.

    Args:
        resolved: Recipe of the whole run.
        name: Name of the suite.
        stages: Names of the stages in order.

    Raises:
        RecipeError: If there is no such stage.
    """
    stage = resolved.recipe.evaluation.suites[name].stage
    if stage is None:
        return None
    known = {str(number): each for number, each in enumerate(stages, start=1)}
    known |= {each.partition("-")[2]: each for each in reversed(stages)}
    known |= {each: each for each in stages}
    if str(stage) not in known:
        problem = f'no stage "{stage}"; the stages are {", ".join(stages)}{did_you_mean(str(stage), known)}'
        raise resolved.error(f"evaluation.suites.{name}.stage", problem)
    return known[str(stage)]


def summarize_suites(resolved: Resolved, run_dir: Path, stages: Sequence[str]) -> dict[str, Any]:
    """Return forgetting and transfer on all suites of a finished run, for `summary.json`; empty without suites.

    Args:
        resolved: Recipe of the whole run.
        run_dir: Run directory.
        stages: Names of the stages in order.
    """
    suites = {}
    for name in resolved.recipe.evaluation.suites:
        results = {stage: read_json(suite_file(run_dir, name, stage)) for stage in (UNTRAINED, *stages)}
        rates = {stage: each["success"] for stage, each in results.items() if each and each["success"] is not None}
        if len(rates) > 1 and UNTRAINED in rates:
            stage = find_suite_stage(resolved, name, stages)
            suites[name] = compute_transfer(rates, stage if stage in rates else None)
    return summarize_transfer(suites) if suites else {}
