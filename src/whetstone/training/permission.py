"""Permission for real calls: which tools of a run change something, how often, and whether the recipe permits them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from whetstone.assembly.environment import build_environment, find_tool_effects, run_policy
from whetstone.capabilities import implements_protocol
from whetstone.environments import Environment
from whetstone.environments.protocol import HoldsTools
from whetstone.errors import InfrastructureError, RunDirectoryError
from whetstone.own_loop import run_sync
from whetstone.recipe import Resolved, list_stages
from whetstone.recipe.settings import EnvironmentSettings
from whetstone.reporting import read_trajectories
from whetstone.tools import CallPolicy, Effect, Toolset
from whetstone.tools.side_effects import describe_declaration, describe_effects
from whetstone.training.cost_estimate import count_episodes, max_calls_per_turn, max_turns_of_stage

Ask = Callable[[str], bool]
"""Asks a person a yes-or-no question, such as whether tools may be called, and returns the answer."""
Part = tuple[Resolved, Callable[[Resolved], int]]
"""(recipe, function that counts the episodes played with it) of one part of a run."""


@dataclass(frozen=True, slots=True)
class RealCalls:
    """Tools of a run that are not read-only, with the expected number of calls; from `expect_calls`."""

    effects: dict[str, Effect | None] = field(default_factory=dict)
    """Effect of each tool: `write`, `destructive`, or None if unknown."""
    count: dict[str, int] = field(default_factory=dict)
    """Expected number of calls, by tool."""
    basis: str = ""
    """Basis of the estimate in one line, for the message."""
    is_mean: bool = False
    """Whether the numbers are expected values from measured calls; otherwise one call per turn is assumed."""

    def describe(self, names: Sequence[str]) -> str:
        """Describe some tools with their effects and expected numbers of calls, in one line."""
        each = ", ".join(f"{self.count[n]:,} of {describe_effects({n: self.effects[n]})}" for n in names)
        return f"{'about ' if self.is_mean else ''}{each}: {self.basis}"


def tool_effects(resolved: Resolved, log: Callable[[str], None] = lambda line: None) -> dict[str, Effect | None]:
    """Return the effects of the tools of a recipe. MCP servers are started to list their tools.

    Args:
        resolved: Recipe.
        log: Receives one line if a server does not respond.

    Returns:
        Effect by tool; None: unknown.

    Raises:
        RecipeError: If the environment cannot be created.
    """
    return known_effects(build_environment(resolved, CallPolicy()), resolved.recipe.environment, log)


def known_effects(
    make: Callable[[], Environment], settings: EnvironmentSettings, log: Callable[[str], None] = lambda line: None
) -> dict[str, Effect | None]:
    """Return the effects of the tools of an environment; see `tool_effects`.

    Args:
        make: Creates the environment.
        settings: Environment settings of the recipe, which can declare effects.
        log: Receives one line if a server does not respond.
    """
    environment = make()
    try:
        toolset = environment.toolset if implements_protocol(environment, HoldsTools) else None
        if isinstance(toolset, Toolset) and toolset.changing:
            run_sync(toolset.list_effects)
    except InfrastructureError as error:
        log(f"the effects of tools are not known before the run: {error}")
    return find_tool_effects(environment, settings)


def expect_calls(parts: Sequence[Part], measured: Path | None, log: Callable[[str], None]) -> RealCalls:
    """Estimate how often a run calls tools that are not read-only.

    Args:
        parts: Recipes that are played, with their numbers of episodes.
        measured: Run directory whose last evaluation has the calls per episode. None, or a run without an evaluation:
            one call per turn is assumed.
        log: Receives one line if a server does not respond.
    """
    effects: dict[str, Effect | None] = {}
    played = [(part, {name: e for name, e in tool_effects(part[0], log).items() if e != "read"}) for part in parts]
    if not any(real for _, real in played):
        return RealCalls()
    count: dict[str, float] = defaultdict(float)
    rates = measured_rates(measured) if measured is not None else None
    episodes = 0
    for (resolved, episodes_of), real in played:
        number = episodes_of(resolved)
        episodes += number
        effects |= real
        for name in real:
            settings = resolved.recipe.environment
            if name == settings.name:  # a custom agent is started once per episode
                count[name] += number
            else:
                count[name] += number * (_longest_episode(resolved) if rates is None else rates.get(name, 0.0))
    turns = max(_longest_episode(resolved) for resolved, _ in parts)
    max_calls = max(max_calls_per_turn(resolved) for resolved, _ in parts)
    several = f" of at most {max_calls}" if max_calls > 1 else ""
    basis = f"{episodes:,} episodes × {turns} turns × 1 call{several} per turn"
    is_mean = False
    if all(name in {part.recipe.environment.name for part, _ in parts} for name in effects):
        basis = f"one per episode, {episodes:,} episodes"
    elif rates is not None:
        basis, is_mean = f"{episodes:,} episodes × mean calls per episode in the last evaluation of {measured}", True
    return RealCalls(effects, {name: round(number) for name, number in count.items()}, basis, is_mean)


def _longest_episode(resolved: Resolved) -> int:
    """Return the maximum number of turns of an episode or a demonstration."""
    recipe = resolved.recipe
    stages = (max_turns_of_stage(resolved, stage) for stage in recipe.own_stages.values())
    return max(recipe.environment.max_turns, *stages, 0)


def measured_rates(run_dir: Path) -> dict[str, float] | None:
    """Return the calls per episode by tool in the last evaluation of a run, or None without one."""
    files = sorted((run_dir / "trajectories").glob("evaluation-*.jsonl"), key=lambda path: path.stat().st_mtime)
    try:
        trajectories = read_trajectories(files[-1]) if files else []
    except RunDirectoryError:  # only an estimate is lost
        return None
    calls = Counter(call.name for trajectory in trajectories for call in trajectory.calls)
    return {name: number / len(trajectories) for name, number in calls.items()} if trajectories else None


def permit_run(
    resolved: Resolved,
    parts: Sequence[Part],
    *,
    ask: Ask | None = None,
    log: Callable[[str], None] = lambda line: None,
    measured: Path | None = None,
    whose: str = "",
) -> Resolved:
    """Return the recipe with permission for the real calls of a run.

    A person is asked if the recipe does not give permission.

    Args:
        resolved: Recipe of the run.
        parts: Recipes that are played, such as stages and ablations, with their numbers of episodes.
        ask: Asks for permission; None refuses.
        log: Receives the expected number of calls.
        measured: Run directory with measured calls; see `expect_calls`.
        whose: Caller in messages, such as `the trial`; empty: the run.

    Raises:
        RecipeError: If a tool has the effect `write` or `destructive`, and no permission is given.
    """
    calls = expect_calls(parts, measured, log)
    title = f"real calls of {whose}" if whose else "real calls"
    unknown = [name for name, effect in calls.effects.items() if effect is None]
    known = [name for name in calls.effects if name not in unknown]
    if unknown:
        log(f"{title}: {calls.describe(unknown)}; {describe_declaration(unknown)}")
    if not known:
        return resolved
    log(f"{title}: {calls.describe(known)}")
    refused = list(run_policy(resolved).refused({name: calls.effects[name] for name in known}))
    if not refused:
        return resolved
    if ask is not None and ask(f"Call {', '.join(refused)} for real?"):
        permitted = resolved.recipe.environment.allow_effects or []
        assert isinstance(permitted, list)  # true permits everything
        return resolved.with_changes({"environment.allow_effects": [*permitted, *refused]})
    raise resolved.error(
        "environment.allow_effects",
        f"real calls of {', '.join(refused)} are not permitted; set it to [{', '.join(refused)}] or use "
        "--allow-effects, or replace the tool by a mock (docs/guide/side-effects.md)",
    )


def training_parts(resolved: Resolved) -> list[Part]:
    """Return the stages and ablations of a recipe, each with its number of episodes."""
    parts: list[Part] = [(stage.resolved, count_episodes) for stage in list_stages(resolved)]
    parts = parts or [(resolved, count_episodes)]
    for changes in resolved.recipe.ablations.values():
        parts += training_parts(resolved.with_changes({"ablations": None, **changes}))
    return parts
