"""How good is the agent of a run or a recipe? Found, assembled and played on held-out tasks, in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from whetstone.assembly import Assembly, assemble
from whetstone.chat import ChatEndpoint
from whetstone.errors import RecipeError
from whetstone.evaluation import Evaluation
from whetstone.policies import Policy
from whetstone.recipe import Recipe, Resolved, load_recipe
from whetstone.record import run_of_checkpoint, run_recipe
from whetstone.reporting import Progress
from whetstone.rewards.protocol import let_go
from whetstone.rollout import EndpointActor
from whetstone.training import evaluating
from whetstone.training.cost_estimate import count_evaluation
from whetstone.training.evaluating import EvaluationRecord, protocol_of
from whetstone.training.final import final_agent
from whetstone.training.own_loop import run_to_end
from whetstone.training.permission import Ask, permit_run
from whetstone.training.summary import RunSummary
from whetstone.trajectory import Group

RunOrRecipe = RunSummary | Resolved | Recipe | Mapping[str, Any] | str | Path


def evaluate(
    run_or_recipe: RunOrRecipe,
    overrides: Sequence[str] = (),
    *,
    policy: str | Path | ChatEndpoint | None = None,
    episodes: int | None = None,
    samples: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    into: str | Path | None = None,
    progress: Progress | None = None,
    ask: Ask | None = None,
) -> Evaluation:
    """Success on held-out tasks, with intervals: of a run at its last checkpoint, or of a recipe's policy as it stands.
    Works where an event loop is running, as in a notebook.

    Args:
        run_or_recipe: A run's summary or directory, or a recipe as of `load_recipe`.
        overrides: `key=value`, values in YAML.
        policy: Who acts instead: a run, a model's folder, or an endpoint.
        episodes: Held-out tasks; None: the recipe's, here and below.
        samples: Episodes of each task, for pass@k.
        temperature: 0 takes the likeliest token.
        seed: Of the draws.
        into: A folder that episodes are kept in; the same call goes on with them.
        progress: What a person sees meanwhile; None: a bar in a terminal or notebook, else lines.
        ask: Same as for `train`.

    Raises:
        WhetstoneError: A recipe, file or folder is wrong, or there is no such run.
    """
    given = {"episodes": episodes, "samples": samples, "temperature": temperature}
    changes = [f"evaluation.{key}={value}" for key, value in given.items() if value is not None]
    agent = agent_of(run_or_recipe, (*overrides, *changes), policy)
    record = EvaluationRecord(Path(into)) if into is not None else None
    if record is not None:
        record.check()
    return evaluate_agent(agent, seed=seed, record=record, progress=progress or Progress(), ask=ask)[0]


@dataclass(frozen=True, slots=True)
class Agent:
    """Who acts, and in which recipe."""

    resolved: Resolved
    policy: Policy | None = None
    """None: the recipe's own."""
    memory: Mapping[str, Any] | None = None
    """What parts of the method remember."""
    endpoint: ChatEndpoint | None = None
    """Acts in the policy's place."""
    run_dir: Path | None = None
    """Run directory of the recipe."""


def agent_of(
    run_or_recipe: RunOrRecipe, overrides: Sequence[str] = (), policy: str | Path | ChatEndpoint | None = None
) -> Agent:
    """The agent of a run or recipe.

    Args:
        policy: As of `evaluate`.

    Raises:
        WhetstoneError: There is neither, or the recipe cannot be meant.
    """
    resolved, run = recipe_of(run_or_recipe, overrides)
    trained = partial(final_agent, trust_remote_code=resolved.recipe.policy.trust_remote_code)
    if isinstance(policy, str | Path):
        folder = Path(policy)
        if (folder / "recipe.yaml").is_file():
            return Agent(resolved, *trained(folder), run_dir=run)
        return Agent(resolved.with_changes({"policy": {"path": str(policy)}}), run_dir=run)
    own, memory = trained(run) if run is not None else (None, None)
    return Agent(resolved, own, memory, policy, run)


def recipe_of(run_or_recipe: RunOrRecipe, overrides: Sequence[str] = ()) -> tuple[Resolved, Path | None]:
    """(the recipe with overrides, the directory where it is that of a run or of a checkpoint in one)

    Raises:
        WhetstoneError: There is neither, or the recipe cannot be meant.
    """
    if isinstance(run_or_recipe, RunSummary):
        run_or_recipe = run_or_recipe.run_dir
    if not isinstance(run_or_recipe, str | Path):
        return load_recipe(run_or_recipe, overrides), None
    path = Path(run_or_recipe)
    if (run := run_of_checkpoint(path)) is not None:
        return run_recipe(run).with_overrides(overrides), path
    if path.is_dir():
        return run_recipe(path).with_overrides(overrides), path
    if len(path.parts) > 1 and not path.exists() and not path.with_name(f"{path.name}.yaml").exists():
        raise RecipeError(f"{path}: neither a run nor a recipe is there")
    return load_recipe(run_or_recipe, overrides), None


def evaluate_agent(
    agent: Agent,
    *,
    seed: int | None,
    record: EvaluationRecord | None,
    progress: Progress,
    say: Callable[[str], None] | None = None,
    heard: Callable[[Group], None] | None = None,
    ask: Ask | None = None,
) -> tuple[Evaluation, dict[str, Any]]:
    """(what it came to, everything that decided it)

    Args:
        seed: None: the recipe's.
        record: Where episodes are kept.
        say: Told what takes a while, and what was left out; None: `progress` shows it.
        heard: Told each task's episodes as they end.
        ask: Same as for `train`.

    Raises:
        WhetstoneError: As `assemble`; or the record is of another evaluation.
    """
    parts = [(agent.resolved, count_evaluation)]
    resolved = permit_run(agent.resolved, parts, ask=ask, log=say or progress.say, measured=agent.run_dir)
    assembly = assemble(resolved, agent.policy, agent.memory, say=say or progress.say)
    seed = agent.resolved.recipe.seed if seed is None else seed
    return run_to_end(lambda: _played(assembly, agent.endpoint, seed, record, progress, heard))


async def _played(
    assembly: Assembly,
    endpoint: ChatEndpoint | None,
    seed: int,
    record: EvaluationRecord | None,
    progress: Progress,
    heard: Callable[[Group], None] | None,
) -> tuple[Evaluation, dict[str, Any]]:
    settings, recipe = assembly.resolved.recipe.evaluation, assembly.resolved.recipe
    tasks = assembly.source.held_out(settings.episodes)
    who = f"{endpoint.model} at {endpoint.url}" if endpoint is not None else ""
    protocol = protocol_of(
        assembly, tasks, samples=settings.samples, temperature=settings.temperature, seed=seed, who=who
    )
    if record is not None:
        record.open(protocol)
    actor = None
    if endpoint is not None:
        actor = EndpointActor(endpoint, assembly.chat, settings.temperature, recipe.rollout.max_new_tokens)
    engine = assembly.engine()
    closers: list[Callable[[], Any]] = [engine.close]
    if endpoint is not None:
        closers.append(endpoint.close)
    closers.append(partial(let_go, assembly.reward))

    def ended(group: Group) -> None:
        shown.advance({})
        if heard is not None:
            heard(group)

    try:
        with progress.stage("evaluation", len(tasks)) as shown:
            came_to, _ = await evaluating.evaluate(
                assembly,
                engine,
                episodes=settings.episodes,
                samples=settings.samples,
                temperature=settings.temperature,
                seed=seed,
                heard=ended,
                actor=actor,
                record=record,
            )
    finally:
        for close in closers:
            await close()
    return came_to, protocol
