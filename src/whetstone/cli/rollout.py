"""`whetstone rollout`: sample a few episodes and show them, without training."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

import whetstone.assembly
import whetstone.rollout
import whetstone.tasks
from whetstone import training
from whetstone.cli import shell_completion
from whetstone.cli.deprecation_notices import print_notices
from whetstone.cli.effects import add_permissions, allow_effects_option, ask_once
from whetstone.cli.format_message import format_message, show_tools
from whetstone.cli.unused_overrides import LEARNING, warn_unused_overrides
from whetstone.errors import RecipeError
from whetstone.strict_json import to_json
from whetstone.tool_calls import compute_tool_statistics, describe_failing_tools
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.trajectory import Trajectory

if TYPE_CHECKING:
    from whetstone.assembly import RunComponents


_OF_GROUPS = (
    "rollout.strategy", "rollout.group_size", "rollout.replay", "rollout.trajectory_filters",
    "rollout.dynamic_sampling", "rollout.group_timeout_seconds",
)  # fmt: skip


@click.command("rollout")
@click.argument("run_or_recipe", shell_complete=shell_completion.recipes_or_runs)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=shell_completion.complete_overrides)
@click.option("-n", "count", type=click.IntRange(min=1), default=3, show_default=True, help="Number of episodes.")
@click.option("--expert", is_flag=True, help="Play with the expert of the task source instead of the policy.")
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per episode.")
def rollout_command(
    run_or_recipe: str, overrides: tuple[str, ...], count: int, expert: bool, allow_effects: bool, as_json: bool
) -> None:
    """Play episodes of RUN_OR_RECIPE on training tasks and show them as conversations.

    The expert plays as for the supervised stage: on its tasks and with its maximum number of turns.
    """
    run_dir = Path(run_or_recipe)
    unread = (*LEARNING, *_OF_GROUPS, "evaluation", *(("policy",) if run_dir.is_dir() else ()))
    warn_unused_overrides([each for each in overrides if not expert or not each.startswith("supervised.")], unread,
               "episodes are sampled one by one and not trained on")  # fmt: skip
    resolved, run = training.resolve_recipe(run_or_recipe, add_permissions(overrides, allow_effects))
    print_notices(resolved)
    resolved = training.permit_run(
        resolved,
        [(resolved, lambda _: count)],
        ask=ask_once(),
        log=lambda line: click.echo(f"whetstone: {line}", err=True),
        measured=run,
    )
    trusted = resolved.recipe.policy.trust_remote_code
    policy, memory = training.final_agent(run, trust_remote_code=trusted) if run is not None else (None, None)
    assembly = whetstone.assembly.assemble(resolved, policy, memory, say=lambda line: click.echo(line, err=True))
    if expert and not isinstance(assembly.demonstration_source, whetstone.tasks.Expert):
        raise RecipeError(f'--expert: the source "{resolved.recipe.tasks.source}" has no expert; omit the option')
    trajectories = asyncio.run(play_rollout(assembly, count, expert=expert))
    tools = compute_tool_statistics(call for trajectory in trajectories for call in trajectory.calls)
    for line in describe_failing_tools(tools):
        click.secho(sanitize_text(f"whetstone: {line}"), err=True)
    for trajectory in trajectories:
        if as_json:
            click.echo(to_json(_as_json(trajectory)))
        else:
            _show(trajectory)
    if tools and not as_json:
        show_tools(tools)


async def play_rollout(assembly: RunComponents, count: int, *, expert: bool) -> list[Trajectory]:
    """Play training tasks with the policy, or demonstrations as the supervised stage has them.

    Args:
        assembly: Components of the run.
        count: Number of episodes.
        expert: Whether the expert plays.
    """
    recipe = assembly.resolved.recipe
    engine = assembly.build_engine()
    try:
        if expert:
            source, collector = assembly.demonstration_source, assembly.build_demonstration_collector()
        else:
            actor = assembly.policy_actor(engine, temperature=recipe.rollout.temperature)
            source, collector = assembly.source, assembly.build_collector(actor, method=assembly.method)
        plans = whetstone.rollout.make_plans((source.task(index) for index in range(count)), seed=recipe.seed)
        return await asyncio.gather(*map(collector.sample, plans))
    finally:
        await engine.close()


def _as_json(trajectory: Trajectory) -> dict[str, object]:
    return {
        "task": trajectory.task_id,
        "messages": [message.to_openai() for message in trajectory.messages],
        "ended": trajectory.ended,
        "error": trajectory.error,
        "reward": trajectory.score.value if trajectory.score else None,
        "action_tokens": trajectory.action_tokens,
        "calls": [asdict(call) for call in trajectory.calls],
    }


def _show(trajectory: Trajectory) -> None:
    click.secho(sanitize_text(trajectory.task_id), bold=True)
    for message in trajectory.messages:
        click.echo(format_message(message))
    score = "no score" if trajectory.score is None else f"reward {trajectory.score.value:g}"
    error = f" ({trajectory.error})" if trajectory.error else ""
    click.secho(sanitize_text(f"  {trajectory.ended}{error}, {score}, {trajectory.action_tokens} tokens\n"), dim=True)
