"""`whetstone evaluate`: success on held-out tasks, with intervals."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import click

from whetstone import training
from whetstone.evaluation import Evaluation
from whetstone.recipe import Resolved, load_recipe


@click.command()
@click.argument("run_or_recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--episodes", type=click.IntRange(min=1), help="Held-out tasks [the recipe's].")
@click.option("--samples", type=click.IntRange(min=1), help="Episodes of each task, for pass@k [the recipe's].")
@click.option("--temperature", type=click.FloatRange(min=0), help="0 takes the likeliest token [the recipe's].")
@click.option("--seed", type=click.IntRange(min=0), help="Of the draws [the recipe's].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(
    run_or_recipe: str,
    overrides: tuple[str, ...],
    episodes: int | None,
    samples: int | None,
    temperature: float | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Evaluate RUN_OR_RECIPE: a run directory at its last checkpoint, or a recipe's policy as it stands."""
    run_dir = Path(run_or_recipe)
    if run_dir.is_dir():
        resolved = training.run_recipe(run_dir).with_overrides(overrides)
        policy, memory = training.final_agent(run_dir)
    else:
        resolved, policy, memory = load_recipe(run_or_recipe, overrides), None, None
    given = {"episodes": episodes, "samples": samples, "temperature": temperature}
    changes: dict[str, Any] = {f"evaluation.{key}": value for key, value in given.items() if value is not None}
    resolved = resolved.with_changes(changes)
    came_to = asyncio.run(_evaluated(resolved, training.assemble(resolved, policy, memory), seed))
    if as_json:
        click.echo(json.dumps(came_to.to_json()))
    else:
        _show(came_to)


async def _evaluated(resolved: Resolved, assembly: training.Assembly, seed: int | None) -> Evaluation:
    settings = resolved.recipe.evaluation
    engine = assembly.engine()
    try:
        came_to, _ = await training.evaluate(
            assembly,
            engine,
            episodes=settings.episodes,
            samples=settings.samples,
            temperature=settings.temperature,
            seed=resolved.recipe.seed if seed is None else seed,
        )
    finally:
        await engine.close()
    return came_to


def _show(came_to: Evaluation) -> None:
    click.echo(training.headline(came_to.to_json()))
    for kind, rate in came_to.kinds.items():
        low, high = rate.interval
        click.echo(f"  {kind:<22} {rate.success:6.1%}  ({low:.0%} to {high:.0%}, {rate.episodes} episodes)")
    well_formed = "" if came_to.well_formed_calls is None else f"  well-formed calls {came_to.well_formed_calls:.1%}"
    click.echo(
        f"turns {came_to.turns:.2f}  tool calls {came_to.tool_calls:.2f}"
        f"  tokens {came_to.action_tokens:.1f}{well_formed}"
    )
    click.echo("reward  " + "  ".join(f"{name} {value:.3f}" for name, value in came_to.parts.items()))
    click.echo("ended   " + "  ".join(f"{reason} {share:.1%}" for reason, share in came_to.ended.items()))
    if len(came_to.pass_at) > 1:
        click.echo("  ".join(f"pass@{k} {value:.1%}" for k, value in came_to.pass_at.items() if not math.isnan(value)))
