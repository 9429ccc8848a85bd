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
from whetstone.cli import shell_completion
from whetstone.cli.deprecation_notices import print_notices
from whetstone.cli.effects import add_permissions, allow_effects_option, ask_once
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.scaling.plan_hardware import GPUS, find_gpu
from whetstone.strict_json import to_json

if TYPE_CHECKING:
    from whetstone.scaling import Balance, PlacementPlan
    from whetstone.training import RunCost, StageCost


@click.command("plan")
@click.argument("recipe", shell_complete=shell_completion.complete_recipes)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=shell_completion.complete_overrides)
@click.option("--trial", is_flag=True, help="Measure a few updates on this machine, about 30 seconds.")
@click.option("--gpus", type=int, help="Plan for a cluster with this number of GPUs [the recipe's scale].")
@click.option("--model", help="Model size, such as 8b [that of the recipe's policy].")
@click.option("--gpu", "gpu_name", default="h100", show_default=True, help=f"One of {', '.join(GPUS)}.")
@click.option(
    "--rates",
    "rates_path",
    type=click.Path(path_type=Path),
    help="YAML file with measured rates, or a run with similar episodes.",
)
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan_command(
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
    hour and the bottleneck, by formula or from --rates (docs/guide/scaling.md).
    """
    resolved = load_recipe(recipe, add_permissions(overrides, allow_effects))
    print_notices(resolved)
    if gpus is None and scaling.own_balance(resolved) is None and rates_path is None and model is None:
        notify = partial(click.echo, err=True)
        cost = training.plan_cost(resolved, with_trial=trial, ask=ask_once(), notify=notify)
        click.echo(to_json(cost.to_json()) if as_json else describe_cost(cost))
        return
    if trial:
        raise RecipeError("--trial measures this machine; a plan for GPUs reads --rates instead")
    rates = scaling.read_rates(rates_path) if rates_path is not None else scaling.Rates()
    best = scaling.best_plan(resolved, gpu=find_gpu(gpu_name), gpus=gpus, model=model, rates=rates)
    if as_json:
        click.echo(to_json(asdict(best)))
        return
    _show(best)


def describe_cost(cost: RunCost) -> str:
    """Format the cost of a run as a table, with a line for memory and basis."""
    text, table = io.StringIO(), Table(box=None, pad_edge=False)
    is_bound = cost.calls_per_turn == 1
    sign = "" if cost.trial is not None else "≤ " if is_bound else "~ "
    for name in ("stage", "updates", "episodes", "tool calls", "judge requests", "price", "minutes"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    start = (
        [training.StageCost("start", 0, 0, 0, 0, None, cost.start_seconds)] if cost.start_seconds is not None else []
    )
    for stage in [*start, *cost.stages, cost.total]:
        table.add_row(*_cost_row(stage, sign))
    Console(file=text, width=120).print(table)
    lines = [text.getvalue().rstrip()]
    for device in dict.fromkeys(share.device for share in cost.memory):
        shares = [share for share in cost.memory if share.device == device]
        parts = [
            sum(share.bytes for share in shares if share.is_permanent is permanent) / 2**30
            for permanent in (True, False)
        ]
        lines.append(f"memory on {device}: {parts[0]:.2f} GiB permanent, up to {parts[1]:.2f} GiB temporary")
    if cost.trial is None:
        most = "" if is_bound else f", of at most {cost.calls_per_turn} (environment.max_calls_per_turn)"
        lines.append(f"tool calls: one per turn{most}; minutes and price need --trial, which calls tools and judges")
    else:
        counts = ", ".join(f"{count} of {name}" for name, count in cost.trial.updates.items())
        lines.append(f"measured in {cost.trial.seconds:.0f} s: updates: {counts}")
        if cost.trial.error and not all(cost.trial.updates.values()):
            lines.append(f"not measured: {cost.trial.error}")
    return "\n".join(lines)


def _cost_row(stage: StageCost, sign: str) -> list[str]:
    price = "" if not stage.judge_requests else "?" if stage.dollars is None else f"{stage.dollars:.2f}"
    minutes = "?" if stage.seconds is None else f"{stage.seconds / 60:.1f}"
    calls = f"{sign if stage.tool_calls else ''}{stage.tool_calls:,}"
    return [
        stage.name,
        f"{stage.updates:,}",
        f"{stage.episodes:,}",
        calls,
        f"{stage.judge_requests:,.0f}",
        price,
        minutes,
    ]


def _show(plan: PlacementPlan) -> None:
    size = f"{plan.parameters / 1e9:.3g} billion" if plan.parameters >= 1e8 else f"{plan.parameters / 1e6:.3g} million"
    click.secho(f"{size} parameters on {plan.gpus} {plan.gpu}", bold=True)
    click.echo(f"balance: {_balance(plan.balance)}")
    click.echo("as keys: " + " ".join(f"{key}={_word(value)}" for key, value in plan.balance.keys.items()))
    if (own := plan.own) is not None:
        rate = own.summary.updates_per_hour
        click.echo(
            f"the recipe's scale: {_balance(own.balance)}; {rate:,.0f} steps per hour, "
            f"{rate / plan.updates_per_hour:.0%} of the best, bottleneck {own.summary.bottleneck}"
        )
    if plan.needed:
        click.echo(
            f"with {' '.join(f'{key}={value}' for key, value in plan.needed.items())}, otherwise it does not fit"
        )
    parts = ", ".join(f"{name} {gib:.1f}" for name, gib in plan.learner.parts.items())
    click.echo(f"memory of a learner GPU: {plan.learner.total:.1f} GiB: {parts}")
    replica = plan.replica
    click.echo(
        f"memory of a replica GPU: {replica.weights + replica.keys:.1f} GiB: weights {replica.weights:.1f}, KV cache "
        f"{replica.keys:.1f} for {replica.sequences:,} sequences"
    )
    click.echo(
        f"per step: {plan.seconds_per_update:.1f} s; per hour: {plan.updates_per_hour:,.0f} steps, "
        f"{plan.episodes_per_hour:,.0f} episodes; {plan.tokens_per_second:,.0f} sampled tokens per second"
    )
    shares = plan.summary.shares
    click.echo(
        f"utilization: learner {shares.learner:.0%}, replicas {shares.sampler:.0%} with batches "
        f"{shares.sampler_batch:.0%} full, episode slots {shares.places:.0%}; "
        f"staleness {plan.summary.staleness_mean:.2g} on average, "
        f"{plan.summary.staleness_max} at most"
    )
    click.secho(f"bottleneck: {plan.summary.bottleneck}", bold=True)
    _show_changes(plan)
    if plan.simulated_share < 1:
        click.echo(f"simulated with {plan.simulated_share:.1%} of the cluster")


def _show_changes(plan: PlacementPlan) -> None:
    if not plan.changes:
        click.echo("no evaluated change gains more than 5 %")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("change", "steps/h", "episodes/h", "next bottleneck"):
        table.add_column(name, justify="right" if name.endswith("/h") else "left")
    for change in plan.changes:
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
        return f"{balance.learners} GPUs that train and sample in turns, as {replicas}"
    together = f" (tensor parallel {balance.together})" if balance.together > 1 else ""
    return f"{balance.learners} GPUs train{together}, {replicas} sample"
