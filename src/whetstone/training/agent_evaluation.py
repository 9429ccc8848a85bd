"""Evaluation of the agent of a run or a recipe on held-out tasks, in one call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from whetstone.assembly import RunComponents, assemble
from whetstone.assembly.members import open_members
from whetstone.assembly.players import build_player, is_player
from whetstone.chat import ChatEndpoint
from whetstone.errors import RecipeError
from whetstone.evaluation import Evaluation
from whetstone.inference import Engine, load_member_states
from whetstone.own_loop import run_sync
from whetstone.policies import Policy
from whetstone.recipe import Recipe, Resolved, load_recipe
from whetstone.record import run_of_checkpoint, run_recipe
from whetstone.reporting import Progress
from whetstone.rewards.protocol import close_reward
from whetstone.rollout import Actor, EndpointActor
from whetstone.training import evaluation_loop
from whetstone.training.cost_estimate import count_evaluation
from whetstone.training.evaluation_loop import EvaluationRecord, evaluation_protocol
from whetstone.training.final_checkpoint import final_agent
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
    """Measure success on held-out tasks, of a run's last checkpoint or of a recipe's policy.

    Works inside a running event loop, as in a notebook.

    Args:
        run_or_recipe: Summary or directory of a run, or a recipe as for `load_recipe`.
        overrides: `key=value` overrides of the recipe, values in YAML.
        policy: Policy to evaluate instead: a run, a model folder, an endpoint, or a player (`expert`, `person`,
            `package.module:function`).
        episodes: Number of held-out tasks; None: the recipe's setting.
        samples: Episodes per task, for pass@k; None: the recipe's setting.
        temperature: Sampling temperature, 0 is greedy; None: the recipe's setting.
        seed: Random seed for sampling; None: the recipe's setting.
        into: Folder that episodes are stored in; the same call resumes from it. None: episodes are not stored.
        progress: Progress display; None: a bar in a terminal or notebook, else lines.
        ask: Asks for permission to call tools that change something; see `train`.

    Returns:
        Success rate with its confidence interval, costs, and causes of failed episodes.

    Raises:
        WhetstoneError: If a recipe, file or folder is invalid, or the run does not exist.
    """
    settings = {"episodes": episodes, "samples": samples, "temperature": temperature}
    changes = [f"evaluation.{key}={value}" for key, value in settings.items() if value is not None]
    agent = load_agent(run_or_recipe, (*overrides, *changes), policy)
    record = EvaluationRecord(Path(into)) if into is not None else None
    if record is not None:
        record.check()
    return evaluate_agent(agent, seed=seed, record=record, progress=progress or Progress(), ask=ask)[0]


@dataclass(frozen=True, slots=True)
class EvaluatedAgent:
    """Agent to evaluate: a recipe with the policy or endpoint that acts; returned by `load_agent`."""

    resolved: Resolved
    """Recipe of the evaluation: tasks, environment, reward and settings."""
    policy: Policy | None = None
    """Policy that acts; None: the recipe's `policy`."""
    memory: Mapping[str, Any] | None = None
    """State of the method's stateful components, by name; None: initial state."""
    endpoint: ChatEndpoint | None = None
    """Model endpoint that acts instead of the policy; None: the policy acts."""
    run_dir: Path | None = None
    """Run directory of the recipe; None: the recipe is not of a run."""
    player: str = ""
    """Player that acts instead of the policy: `expert`, `person` or a function; see `build_player`. Empty: none."""
    every_member: bool = False
    """Whether the other members of a run with several (`policies`) are evaluated as well, with their states from
    `memory`."""

    @property
    def other_name(self) -> str:
        """Name of the endpoint or player that acts; empty if a policy acts."""
        return f"{self.endpoint.model} at {self.endpoint.url}" if self.endpoint is not None else self.player


def load_agent(
    run_or_recipe: RunOrRecipe,
    overrides: Sequence[str] = (),
    policy: str | Path | ChatEndpoint | None = None,
    *,
    member: str | None = None,
) -> EvaluatedAgent:
    """Load the agent of a run, or prepare that of a recipe, for `evaluate_agent`.

    Args:
        run_or_recipe: Summary or directory of a run, or a recipe as for `load_recipe`.
        overrides: `key=value` overrides of the recipe.
        policy: Policy to evaluate instead: a run, a model folder, an endpoint, or a player (`expert`, `person`,
            `package.module:function`).
        member: Member of a run with several (`policies`); None: the first.

    Raises:
        WhetstoneError: If neither a run nor a recipe exists, or the recipe is invalid.
    """
    resolved, run = resolve_recipe(run_or_recipe, overrides)
    trained = partial(final_agent, trust_remote_code=resolved.recipe.policy.trust_remote_code)
    if isinstance(policy, str) and is_player(policy):
        return EvaluatedAgent(resolved, run_dir=run, player=policy)
    if isinstance(policy, str | Path):
        folder = Path(policy)
        if (folder / "recipe.yaml").is_file():
            return EvaluatedAgent(resolved, *trained(folder), run_dir=run)
        return EvaluatedAgent(resolved.with_changes({"policy": {"path": str(policy)}}), run_dir=run)
    own, memory = trained(run, member=member) if run is not None else (None, None)
    every_member = policy is None and run is not None and member is None
    return EvaluatedAgent(resolved, own, memory, policy, run, every_member=every_member)


def resolve_recipe(run_or_recipe: RunOrRecipe, overrides: Sequence[str] = ()) -> tuple[Resolved, Path | None]:
    """Return the recipe of a run or recipe file with overrides, and the run directory or checkpoint.

    Args:
        run_or_recipe: Summary or directory of a run, a checkpoint, or a recipe as for `load_recipe`.
        overrides: `key=value` overrides of the recipe.

    Returns:
        The recipe; and the path of the run or checkpoint, or None for a recipe.

    Raises:
        WhetstoneError: If neither a run nor a recipe exists, or the recipe is invalid.
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
        raise RecipeError(f"{path}: neither a run nor a recipe is there; check the path")
    return load_recipe(run_or_recipe, overrides), None


def evaluate_agent(
    agent: EvaluatedAgent,
    *,
    seed: int | None,
    record: EvaluationRecord | None,
    progress: Progress,
    log: Callable[[str], None] | None = None,
    on_group: Callable[[Group], None] | None = None,
    ask: Ask | None = None,
) -> tuple[Evaluation, dict[str, Any]]:
    """Evaluate an agent on held-out tasks.

    Args:
        agent: Agent and recipe.
        seed: Random seed; None: the recipe's.
        record: Record of the episodes, from which an interrupted evaluation resumes; None: episodes are not stored.
        progress: Progress display.
        log: Receives lines about slow operations and skipped data; None: `progress` shows them.
        on_group: Called with the episodes of each task when they have ended.
        ask: Asks for permission to call tools that change something; see `train`.

    Returns:
        The evaluation, and all settings that determine it (`evaluation_protocol`).

    Raises:
        WhetstoneError: Same as for `assemble`; or if the record contains another evaluation.
    """
    parts = [(agent.resolved, count_evaluation)]
    resolved = permit_run(agent.resolved, parts, ask=ask, log=log or progress.say, measured=agent.run_dir)
    assembly = assemble(resolved, agent.policy, agent.memory, say=log or progress.say)
    if agent.every_member and resolved.recipe.reinforcement is not None:
        assembly.members |= open_members(assembly, None)
        load_member_states(assembly.members, agent.memory, learners=False)
    seed = agent.resolved.recipe.seed if seed is None else seed
    return run_sync(lambda: _played(assembly, agent, seed, record, progress, on_group))


async def _played(
    assembly: RunComponents,
    agent: EvaluatedAgent,
    seed: int,
    record: EvaluationRecord | None,
    progress: Progress,
    on_group: Callable[[Group], None] | None,
) -> tuple[Evaluation, dict[str, Any]]:
    settings = assembly.resolved.recipe.evaluation
    tasks = assembly.source.held_out(settings.episodes)
    protocol = evaluation_protocol(
        assembly, tasks, samples=settings.samples, temperature=settings.temperature, seed=seed, who=agent.other_name
    )
    if record is not None:
        record.open(protocol)

    def ended(group: Group) -> None:
        stage_progress.advance({})
        if on_group is not None:
            on_group(group)

    async with open_agent(assembly, agent) as (engine, actor):
        with progress.stage("evaluation", len(tasks)) as stage_progress:
            result, _ = await evaluation_loop.evaluate_policy(
                assembly,
                engine,
                episodes=settings.episodes,
                samples=settings.samples,
                temperature=settings.temperature,
                seed=seed,
                on_group=ended,
                actor=actor,
                record=record,
                every_member=bool(assembly.trained),
            )
    return result, protocol


@asynccontextmanager
async def open_agent(assembly: RunComponents, agent: EvaluatedAgent) -> AsyncIterator[tuple[Engine, Actor | None]]:
    """Open the engine of the policy and the actor of an agent; both are closed at the end, as are reward and members.

    Args:
        assembly: Components of the evaluation.
        agent: Agent to evaluate.

    Yields:
        The engine, and the actor that acts instead of the policy; None: the policy acts.
    """
    recipe, endpoint = assembly.resolved.recipe, agent.endpoint
    actor: Actor | None = build_player(assembly, agent.player) if agent.player else None
    if endpoint is not None:
        actor = EndpointActor(endpoint, assembly.chat, recipe.evaluation.temperature, recipe.rollout.max_new_tokens)
    engine = assembly.build_engine()
    closers: list[Callable[[], Any]] = [engine.close]
    if endpoint is not None:
        closers.append(endpoint.close)
    closers.append(partial(close_reward, assembly.reward))
    try:
        yield engine, actor
    finally:
        closers += [each.close for each in assembly.members.values()]
        for close in closers:
            await close()
