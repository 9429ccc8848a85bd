"""`whetstone data`: check a dataset before training, and export a dataset from a run."""

from __future__ import annotations

import json
from pathlib import Path

import click

import whetstone.assembly
import whetstone.record
import whetstone.training
from whetstone.data.checking import DataReport, checked_file, counted
from whetstone.data.choosing import Choice
from whetstone.data.conversations import LEARNED_FROM
from whetstone.data.stored_episodes import best_and_worst, stored_groups
from whetstone.environments.protocol import tools_shown
from whetstone.errors import DataError
from whetstone.plain_json import to_json
from whetstone.plugins import find_part
from whetstone.recipe import load_recipe
from whetstone.trajectory import Segment
from whetstone.trajectory_json import encoded_trajectory


@click.group()
def data() -> None:
    """Check a dataset, or export one from a run."""


@data.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--split", default="train", show_default=True, help="Of a dataset that has several.")
@click.option(
    "--train-on",
    default="all",
    show_default=True,
    help="Assistant turns to train: all, last, calls, answers, or package.module:name.",
)
@click.option(
    "-n", "show", type=click.IntRange(min=0), default=1, show_default=True, help="How many to show in tokens."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(
    file: Path, recipe: str, overrides: tuple[str, ...], split: str, train_on: str, show: int, as_json: bool
) -> None:
    """Say what of FILE would be trained by RECIPE: a name, a YAML file.

    Rows that are wrong, said twice, too long, changed by the template, or among the tasks of the evaluation are told;
    the first is shown token by token, what is learned from in green.
    """
    assembly = whetstone.assembly.assemble(load_recipe(recipe, overrides))
    report = checked_file(
        file,
        assembly.chat,
        split=split,
        offered=tuple(tools_shown(assembly.environment())),
        chosen=find_part("turn filter", train_on, LEARNED_FROM),
        context_length=assembly.policy.context_length,
        held_out=assembly.source.held_out(assembly.resolved.recipe.evaluation.episodes),
        show=show,
    )
    if as_json:
        click.echo(to_json(report.to_json()))
    else:
        _tell(report, file)
        for episode in report.shown:
            for segment in episode.segments():
                _show(segment, assembly.chat.tokenizer)
    if report.wrong or not report.learned:
        raise DataError(
            f"{file}: {len(report.wrong)} rows are wrong, {report.learned} of {report.rows} can be learned from"
        )


def _tell(report: DataReport, file: Path) -> None:
    told = report.to_json()
    lengths = told["lengths"]
    click.secho(f"{file}: {report.rows} {report.kind}, {report.learned} can be learned from", bold=True)
    click.echo(
        f"  {lengths['median']:.0f} tokens in the median, {lengths['most']:,} at most, {lengths['tokens']:,} in all; "
        f"{report.trained:,} are learned from"
    )
    for line in report.usage.describe(file):
        click.echo(f"  {line}")
    evaluated = [f"{where}  holds the task {task} of the evaluation" for where, task in report.evaluated]
    twice = [f"{where}  says what {before} says" for where, before in report.twice]
    for lines, colour in ((report.wrong, "red"), (report.left_out, "yellow"), (evaluated, "yellow"), (twice, "yellow")):
        for line in counted(lines):
            click.secho(f"  {line}", fg=colour)


def _show(segment: Segment, tokenizer: object) -> None:
    """Token by token, what is learned from in green."""
    click.echo()
    for token, learned in zip(segment.tokens.ids, segment.action_mask, strict=True):
        text = tokenizer.decode([token])  # type: ignore[attr-defined]
        click.secho(text, fg="green" if learned else None, dim=not learned, nl=False)
    click.echo()


@data.command("export")
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Output file.")
@click.option("--top-k-per-task", type=click.IntRange(min=1), help="Maximum episodes per task, highest reward first.")
@click.option("--min-reward", type=float, help="Minimum reward of an episode.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Maximum number of sampled tokens of an episode.")
@click.option("--well-formed-only", is_flag=True, help="Exclude truncated episodes, unanswered tool calls and loops.")
@click.option("--deduplicate", is_flag=True, help="Exclude duplicates among the episodes of a task.")
@click.option(
    "--as",
    "kind",
    type=click.Choice(["conversations", "pairs", "trajectories"]),
    default="conversations",
    show_default=True,
    help="Messages in OpenAI format; best and worst episode of each task; or tokens with log-probs.",
)
def export(
    run_dir: Path,
    output: Path,
    top_k_per_task: int | None,
    min_reward: float | None,
    max_tokens: int | None,
    well_formed_only: bool,
    deduplicate: bool,
    kind: str,
) -> None:
    """Export the episodes sampled by RUN_DIR in reinforcement to a file, for the `data` of another recipe."""
    if output.exists():
        raise DataError(f"{output}: is there already")
    assembly = whetstone.assembly.assemble(
        whetstone.record.run_recipe(run_dir), whetstone.training.final_policy(run_dir)
    )
    top_k = None if kind == "pairs" else top_k_per_task
    choice = Choice(min_reward, top_k, max_tokens, well_formed_only, deduplicate)
    groups = stored_groups(run_dir, assembly.chat, choice)
    tools = [spec.to_openai() for spec in tools_shown(assembly.environment())]
    lines: list[bytes] = []
    for group in groups:
        if kind == "trajectories":
            lines += [encoded_trajectory(each) for each in group.trajectories]
        elif kind == "conversations":
            told = ([message.to_openai() for message in each.messages] for each in group.trajectories)
            lines += [json.dumps({"messages": messages, "tools": tools}).encode() for messages in told]
        else:
            pair = best_and_worst(group)
            if pair is None:
                continue
            sides = zip(("chosen", "rejected"), pair, strict=True)
            row = {side: [message.to_openai() for message in each.messages] for side, each in sides}
            lines.append(json.dumps({**row, "tools": tools}).encode())
    if not lines:
        raise DataError(f"{run_dir}: no task of it has a better and a worse episode")
    output.write_bytes(b"\n".join(lines) + b"\n")
    click.echo(f"{output}: {len(lines)} {kind}")
