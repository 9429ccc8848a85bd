"""`whetstone plan`: the cost of a run on this machine, or its speed on a cluster, before it starts."""

from __future__ import annotations

import io
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from whetstone import scaling, training
from whetstone.cli import completing
from whetstone.cli.effects import allow_effects_option, ask_once, permitting
from whetstone.cli.notes import say_notes
from whetstone.errors import RecipeError
from whetstone.plain_json import to_json
from whetstone.recipe import load_recipe
from whetstone.scaling.plan_hardware import GPUS, find_gpu

if TYPE_CHECKING:
    from whetstone.scaling import Balance, Plan
    from whetstone.training import RunCost, StageCost


@click.command()
@click.argument("recipe", shell_complete=completing.recipes)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=completing.overrides)
@click.option("--trial", is_flag=True, help="Measure a few updates on this machine, about 30 seconds.")
@click.option("--gpus", type=int, help="Plan for a cluster with this number of GPUs [the recipe's scale].")
@click.option("--model", help="Its size, such as 8b; unless it is the recipe's own policy.")
@click.option("--gpu", "gpu_name", default="h100", show_default=True, help=f"One of {', '.join(GPUS)}.")
@click.option(
    "--rates",
    "rates_path",
    type=click.Path(path_type=Path),
    help="A YAML file of what was measured, or a run whose episodes are like those to come.",
)
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    recipe: str,
    overrides: tuple[str, ...],
    trial: bool,
    gpus: int | None,
    model: str | None,
    gpu_name: str,
    rates_path: Path | None,
    allow_effects: bool,
    as_json: bool,
) -> None:
    """Estimate the cost of RECIPE on this machine: updates, episodes, tool calls, judge requests, minutes and memory.

    The counts follow from the recipe; time and price need --trial, which plays episodes and calls tools and judges.

    With --gpus, or a recipe whose scale places GPUs: memory of each GPU, the balance of learner and samplers, steps per
    hour and the bottleneck, by formula or from --rates (docs/scaling.md).
    """
    resolved = load_recipe(recipe, permitting(overrides, allow_effects))
    say_notes(resolved)
    if gpus is None and scaling.own_balance(resolved) is None and rates_path is None and model is None:
        notify = partial(click.echo, err=True)
        cost = training.plan_cost(resolved, with_trial=trial, ask=ask_once(), notify=notify)
        click.echo(to_json(cost.to_json()) if as_json else describe_cost(cost))
        return
    if trial:
        raise RecipeError("--trial measures this machine; a plan for GPUs reads --rates instead")
    rates = scaling.read_rates(rates_path) if rates_path is not None else scaling.Rates()
    found = scaling.best_plan(resolved, gpu=find_gpu(gpu_name), gpus=gpus, model=model, rates=rates)
    if as_json:
        click.echo(to_json(asdict(found)))
        return
    _show(found)


def describe_cost(cost: RunCost) -> str:
    """Return the cost of a run as a table with a line for memory and basis."""
    text, table = io.StringIO(), Table(box=None, pad_edge=False)
    bound = "" if cost.trial is not None else "≤ "
    for name in ("stage", "updates", "episodes", "tool calls", "judge requests", "price", "minutes"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for stage in [*cost.stages, cost.total]:
        table.add_row(*_cost_row(stage, bound))
    Console(file=text, width=120).print(table)
    lines = [text.getvalue().rstrip()]
    for device in dict.fromkeys(share.device for share in cost.memory):
        here = [share for share in cost.memory if share.device == device]
        parts = [sum(share.bytes for share in here if share.held is held) / 2**30 for held in (True, False)]
        lines.append(f"memory on {device}: {parts[0]:.2f} GiB held, up to {parts[1]:.2f} GiB for a while")
    if cost.trial is None:
        lines.append("tool calls: at most one per turn; minutes and price need --trial, which calls tools and judges")
    else:
        counts = ", ".join(f"{count} of {name}" for name, count in cost.trial.updates.items())
        lines.append(f"measured in {cost.trial.seconds:.0f} s: updates: {counts}")
        if cost.trial.error and not all(cost.trial.updates.values()):
            lines.append(f"not measured: {cost.trial.error}")
    return "\n".join(lines)


def _cost_row(stage: StageCost, bound: str) -> list[str]:
    price = "" if not stage.judge_requests else "?" if stage.dollars is None else f"{stage.dollars:.2f}"
    minutes = "?" if stage.seconds is None else f"{stage.seconds / 60:.1f}"
    calls = f"{bound if stage.tool_calls else ''}{stage.tool_calls:,}"
    return [
        stage.name,
        f"{stage.updates:,}",
        f"{stage.episodes:,}",
        calls,
        f"{stage.judge_requests:,.0f}",
        price,
        minutes,
    ]


def _show(found: Plan) -> None:
    size = (
        f"{found.parameters / 1e9:.3g} billion" if found.parameters >= 1e8 else f"{found.parameters / 1e6:.3g} million"
    )
    click.secho(f"{size} parameters on {found.gpus} {found.gpu}", bold=True)
    click.echo(f"balance: {_balance(found.balance)}")
    click.echo("as keys: " + " ".join(f"{key}={_word(value)}" for key, value in found.balance.keys.items()))
    if (own := found.own) is not None:
        rate = own.summary.updates_per_hour
        click.echo(
            f"the recipe's scale: {_balance(own.balance)}; {rate:,.0f} steps an hour, "
            f"{rate / found.updates_per_hour:.0%} of the best, held up by {own.summary.bottleneck}"
        )
    if found.needed:
        click.echo(f"with {' '.join(f'{key}={value}' for key, value in found.needed.items())}, or it does not fit")
    parts = ", ".join(f"{name} {gib:.1f}" for name, gib in found.learner.parts.items())
    click.echo(f"a GPU of the learner holds {found.learner.total:.1f} GiB: {parts}")
    replica = found.replica
    click.echo(
        f"a GPU of a replica holds {replica.weights + replica.keys:.1f} GiB: weights {replica.weights:.1f}, keys and "
        f"values {replica.keys:.1f}, room for {replica.sequences:,} sequences"
    )
    click.echo(
        f"a step: {found.seconds_per_update:.1f} s; an hour: {found.updates_per_hour:,.0f} steps, "
        f"{found.episodes_per_hour:,.0f} episodes; {found.tokens_per_second:,.0f} sampled tokens a second"
    )
    shares = found.summary.shares
    click.echo(
        f"at work: learner {shares.learner:.0%}, replicas {shares.sampler:.0%} with batches {shares.sampler_batch:.0%} "
        f"full, places for episodes {shares.places:.0%}; staleness {found.summary.staleness_mean:.2g} in the mean, "
        f"{found.summary.staleness_max} at most"
    )
    click.secho(f"bottleneck: {found.summary.bottleneck}", bold=True)
    _show_changes(found)
    if found.simulated_share < 1:
        click.echo(f"simulated as {found.simulated_share:.1%} of the cluster")


def _show_changes(found: Plan) -> None:
    if not found.changes:
        click.echo("no change that was tried brings more than 5 %")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("what to change", "steps/h", "episodes/h", "then held up by"):
        table.add_column(name, justify="right" if name.endswith("/h") else "left")
    for change in found.changes:
        keys = " ".join(f"{key}={value}" for key, value in change.keys.items())
        table.add_row(keys, f"{change.updates_per_hour:,.0f}", f"{change.episodes_per_hour:,.0f}", change.bottleneck)
    Console().print(table)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _balance(balance: Balance) -> str:
    replicas = (
        f"{balance.replicas} replicas of {balance.tensor_parallel} GPU{'s' if balance.tensor_parallel > 1 else ''}"
    )
    if balance.colocated:
        return f"{balance.learners} GPUs that learn and sample in turns, as {replicas}"
    together = f" ({balance.together} a layer)" if balance.together > 1 else ""
    return f"{balance.learners} GPUs learn{together}, {replicas} sample"
