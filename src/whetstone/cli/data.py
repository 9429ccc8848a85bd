"""`whetstone data`: check a dataset before training; export a dataset from a run, or score its episodes again."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import click

import whetstone.assembly
import whetstone.record
import whetstone.training
from whetstone import analysis
from whetstone.chat import ToolSpec
from whetstone.cli.data_errors import inject_errors_command
from whetstone.cli.data_import import import_data
from whetstone.cli.judge_option import describe_usage
from whetstone.cli.unused_overrides import warn_unused_overrides
from whetstone.data.conversations import LEARNED_FROM
from whetstone.data.offline_episodes import best_and_worst, count_same_order, stored_groups
from whetstone.data.policy_limits import PolicyLimits
from whetstone.data.row_readers import InvalidRow, read_rows
from whetstone.data.select_episodes import Choice, get_reward
from whetstone.data.sensitive import collect_texts, count_sensitive, mask_sensitive, missing_package
from whetstone.data.traces.otel_export import export_episode
from whetstone.data.validate import DataReader, DataReport, check_file, count_lines, write_redacted
from whetstone.errors import DataError
from whetstone.failure_causes import count_failure_causes, format_causes
from whetstone.optional_dependencies import install_command
from whetstone.plugins import find_part
from whetstone.recipe import DataSettings, Resolved, load_recipe
from whetstone.recipe.stage_recipes import list_stages
from whetstone.rewards.judge_usage import find_judges, judge_metrics
from whetstone.rewards.protocol import close_reward
from whetstone.strict_json import to_json
from whetstone.tasks.file import task_suffix
from whetstone.trajectory import Group, Segment, Trajectory
from whetstone.trajectory_json import encode_trajectory


@click.group("data")
def data_command() -> None:
    """Check a dataset, import one from traces, export one from a run, score stored episodes, or insert known errors."""


data_command.add_command(import_data)
data_command.add_command(inject_errors_command)


@data_command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--split", help="Split of a dataset with several splits.  [default: split of the stage, or train]")
@click.option(
    "--train-on",
    help="Assistant turns to train: all, last, calls, answers, or module:name.  [default: of the stage, or all]",
)
@click.option(
    "-n", "show", type=click.IntRange(min=0), default=1, show_default=True, help="Number of episodes to show as tokens."
)
@click.option(
    "--redact",
    "output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="COPY",
    help="Write a copy as JSON lines with secrets and personal data replaced; FILE stays as it is.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check_data_command(
    file: Path,
    recipe: str,
    overrides: tuple[str, ...],
    split: str | None,
    train_on: str | None,
    show: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Report what RECIPE (a name, a YAML file) would train of FILE.

    If a stage of the recipe names FILE, the file is read with the settings of that stage, its filters included. Every
    row is read: invalid rows, duplicates, rows that are too long, changed by the template or contain tasks of the
    evaluation, answers that are longer than the policy may sample, and the number of secrets and personal data by kind.
    The first episode is shown token by token, trained tokens in green. The exit code is 2 if a row is invalid.
    """
    resolved = load_recipe(recipe, overrides)
    assembly = whetstone.assembly.assemble(whetstone.assembly.as_reinforcement(resolved))
    stage, settings = _settings_for(resolved, file)
    changes = {"split": split, "train_on": train_on}
    settings = settings.model_copy(update={key: value for key, value in changes.items() if value is not None})
    is_tasks = not stage and _is_task_file(resolved, file)
    if is_tasks:
        report = _check_tasks(file, assembly)
    else:
        reader = DataReader(
            assembly.chat,
            settings,
            stage.partition(".")[0],
            offered=assembly.offered_tools,
            chosen=find_part("turn filter", settings.train_on, LEARNED_FROM),
            context_length=assembly.policy.context_length,
            choice=whetstone.assembly.build_episode_filter(settings),
            stored=lambda: assembly.stored_reader.groups(settings, stage or "data"),
            limits=lambda: PolicyLimits.of_recipe(resolved.recipe),
        )
        held_out = assembly.source.held_out(assembly.resolved.recipe.evaluation.episodes)
        report = check_file(file, reader, held_out=held_out, show=show)
    copied = None
    if output is not None:
        suffix = task_suffix(file) if is_tasks else ""
        copied = write_redacted(file, output, assembly.chat, split=settings.split, suffix=suffix)
    if as_json:
        click.echo(to_json(report.to_json()))
    else:
        _print_report(report, file)
        for episode in report.examples:
            for segment in episode.segments():
                _show(segment, assembly.chat.tokenizer)
    if copied is not None:
        skipped = f"; {copied[1]} rows cannot be read and are not in it" if copied[1] else ""
        click.echo(f"{output}: redacted copy with {copied[0]} rows{skipped}", err=as_json)
    if report.wrong or not report.learned:
        use = "are valid" if is_tasks else "can be trained"
        raise DataError(f"{file}: {len(report.wrong)} rows are invalid, {report.learned} of {report.rows} {use}")


def _settings_for(resolved: Resolved, file: Path) -> tuple[str, DataSettings]:
    """Return (recipe key, settings) of the stage that reads a file.

    If no stage reads the file, the key is empty and the settings have their defaults.
    """
    for recipe in (resolved.recipe, *(stage.resolved.recipe for stage in list_stages(resolved))):
        for kind, stage in recipe.own_stages.items():
            fields = dict(stage)
            mixture, named = fields.get("offline_mixture"), {f"{kind}.data": fields.get("data")}
            named |= {
                f"{kind}.offline_mixture.data.{k}": each for k, each in enumerate(mixture.data if mixture else ())
            }
            for key, settings in named.items():
                if isinstance(settings, DataSettings) and settings.path and _is_same(settings.path, file):
                    return key, settings
    return "", DataSettings(path=str(file))


def _is_task_file(resolved: Resolved, file: Path) -> bool:
    options = resolved.recipe.tasks.options
    return any(_is_same(options[key], file) for key in ("path", "held_out") if isinstance(options.get(key), str))


def _is_same(path: str, file: Path) -> bool:
    return Path(path).resolve() == file.resolve()


def _check_tasks(file: Path, assembly: whetstone.assembly.RunComponents) -> DataReport:
    """Report on the file that the recipe's task source reads; its rows are valid or skipped."""
    report = DataReport("tasks")
    _ = assembly.source  # invalid rows are counted when it is built
    for row in read_rows(file, suffix=task_suffix(file)):
        report.rows += 1
        if not isinstance(row, InvalidRow):
            report.sensitive += count_sensitive(list(collect_texts(row.columns)))
            report.searched += 1
    skipped = assembly.skipped_rows.get("tasks", 0)
    if skipped:
        report.wrong.append(f"{file}: {skipped} invalid rows are skipped (tasks.on_bad_row: skip)")
    report.learned = report.rows - skipped
    return report


def _print_report(report: DataReport, file: Path) -> None:
    plain = report.to_json()
    lengths = plain["lengths"]
    use = "are valid" if report.kind == "tasks" else "can be trained"
    click.secho(f"{file}: {report.rows} {report.kind}, {report.learned} {use}", bold=True)
    if report.kind != "tasks":  # the environment turns a task into tokens, when an episode starts
        click.echo(
            f"  {lengths['median']:.0f} tokens (median), {lengths['most']:,} at most, {lengths['tokens']:,} in total; "
            f"{report.trained:,} are trained"
        )
    for line in report.usage.describe(file):
        click.echo(f"  {line}")
    for problem in report.limits.find_problems(str(file)) if report.limits is not None else ():
        click.secho(f"  {problem}", fg="yellow")
    kinds = ", ".join(f"{count} {kind}" for kind, count in plain["sensitive"].items())
    if report.searched:
        of = (
            f" in the {report.searched} of {report.rows} rows that can be parsed"
            if report.searched < report.rows
            else ""
        )
        click.secho(f"  secrets and personal data: {kinds or '0'}{of}", fg="yellow" if kinds else None)
    else:
        click.secho("  secrets and personal data: not checked, no row can be parsed", fg="yellow")
    if missing_package():
        click.secho(f"  detect-secrets finds keys of further providers: {install_command('secrets')}", dim=True)
    if report.wrong:
        click.secho(f"  {len(report.wrong)} rows are invalid:", fg="red")
    others = [(where, task) for where, task in report.evaluated if where not in report.leaking]
    evaluated = [f"{where}  contains the evaluation task {task}" for where, task in others]
    twice = [f"{where}  duplicate of {before}" for where, before in report.twice]
    listed = ((plain["wrong"], "red", 10), (plain["left_out"], "yellow", 5), (evaluated, "yellow", 5))
    for lines, color, most in (*listed, (twice, "yellow", 5)):
        for line in count_lines(lines, most=most):
            click.secho(f"  {line}", fg=color)


def _show(segment: Segment, tokenizer: Any) -> None:
    """Print a segment token by token, trained tokens in green.

    Secrets and personal data are masked.
    """
    click.echo()
    tokens = zip(segment.tokens.ids, segment.action_mask, strict=True)
    for is_trained, run in groupby(tokens, key=itemgetter(1)):
        text = mask_sensitive(tokenizer.decode([token for token, _ in run]))
        click.secho(text, fg="green" if is_trained else None, dim=not is_trained, nl=False)
    click.echo()


@data_command.command("export")
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
    type=click.Choice(["conversations", "pairs", "trajectories", "otel"]),
    default="conversations",
    show_default=True,
    help="Messages in OpenAI format; best and worst episode of each task; tokens with log-probs; or spans (OTLP/JSON).",
)
def export_data_command(
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
        raise DataError(f"{output}: exists; choose another name")
    assembly = whetstone.assembly.assemble(
        whetstone.record.run_recipe(run_dir), whetstone.training.final_policy(run_dir)
    )
    top_k = None if kind == "pairs" else top_k_per_task
    choice = Choice(min_reward, top_k, max_tokens, well_formed_only, deduplicate)
    groups = stored_groups(run_dir, assembly.chat, choice)
    lines = _encode_groups(groups, kind, assembly.offered_tools, run_dir.stat().st_mtime)
    if not lines:
        raise DataError(f"{run_dir}: no task has episodes with different rewards")
    output.write_bytes(b"\n".join(lines) + b"\n")
    click.echo(f"{output}: {len(lines)} {'traces' if kind == 'otel' else kind}")


def _encode_groups(groups: Sequence[Group], kind: str, offered: tuple[ToolSpec, ...], start: float) -> list[bytes]:
    """Encode groups as lines of a data file.

    Args:
        groups: Groups with scores.
        kind: Format, see `data export --as`.
        offered: Tools of the environment.
        start: Start of the first span, in seconds since 1970.
    """
    tools = [spec.to_openai() for spec in offered]
    lines: list[bytes] = []
    for group in groups:
        if kind == "trajectories":
            lines += [encode_trajectory(each) for each in group.trajectories]
        elif kind == "otel":
            spans = (export_episode(each, offered, start_seconds=start) for each in group.trajectories)
            lines += [to_json(each).encode() for each in spans]
        elif kind == "conversations":
            conversations = ([message.to_openai() for message in each.messages] for each in group.trajectories)
            lines += [json.dumps({"messages": messages, "tools": tools}).encode() for messages in conversations]
        else:
            pair = best_and_worst(group)
            if pair is None:
                continue
            sides = zip(("chosen", "rejected"), pair, strict=True)
            row = {side: [message.to_openai() for message in each.messages] for side, each in sides}
            lines.append(json.dumps({**row, "tools": tools}).encode())
    return lines


@data_command.command("score")
@click.argument("run_dir", type=click.Path(path_type=Path, file_okay=False))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Output file.")
@click.option(
    "--as",
    "kind",
    type=click.Choice(["trajectories", "pairs", "conversations"]),
    default="trajectories",
    show_default=True,
    help="Tokens with the new score; best and worst episode of each task by the new score; or messages.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def score_data_command(run_dir: Path, overrides: tuple[str, ...], output: Path, kind: str, as_json: bool) -> None:
    """Score the episodes that RUN_DIR sampled with another reward (reward=…), and write them to a file.

    Nothing is sampled and no tool is called; the run stays as it is. A judge can label episodes
    (`reward={name: rubric, …}`) or compare those of a task (`reward={name: pairwise_judge, …} --as pairs`); the file is
    data of a supervised, preference, offline or reward model stage. Episodes without a score are counted and not
    written.
    """
    if output.exists():
        raise DataError(f"{output}: exists; choose another name")
    warn_unused_overrides(overrides, ("rollout", "reinforcement", "policy"), "recorded episodes are only scored")
    replay = analysis.RunReplay(run_dir, overrides)
    recorded = [
        replay.load_group(number) for number in sorted(replay.record.admitted) if replay.record.has_group(number)
    ]
    before, after, failed = asyncio.run(_rescore(replay, recorded))
    causes = count_failure_causes(failed)
    unscored = f"{len(failed)} have no score{f': {format_causes(causes)}' if causes else ''}"
    lines = _encode_groups(after, kind, replay.after.offered_tools, 0.0)
    if not lines:
        episodes = len(failed) + sum(len(group.trajectories) for group in after)
        equal = "; no two scored episodes of a task differ in reward" if after else ""
        raise DataError(f"{run_dir}: no rows: of {episodes} episodes {unscored}{equal}")
    output.write_bytes(b"\n".join(lines) + b"\n")
    same, pairs = count_same_order(before, after)
    report = {
        "path": str(output),
        "rows": len(lines),
        "episodes": sum(len(group.trajectories) for group in after),
        "without_score": len(failed),
        "causes": causes,
        "mean_before": _mean_reward(before),
        "mean_after": _mean_reward(after),
        "pairs": pairs,
        "pairs_in_same_order": same,
        **judge_metrics(replay.after.reward),
    }
    if as_json:
        click.echo(to_json(report))
        return
    click.echo(f"{output}: {len(lines)} {kind} of {report['episodes']} episodes; {unscored}")
    click.echo(f"mean reward {report['mean_before']:.4g} → {report['mean_after']:.4g}")
    click.echo(f"{same} of {pairs} pairs of a task that differ in both rewards have the same order")
    for judge in find_judges(replay.after.reward):
        click.echo(describe_usage(judge))


async def _rescore(
    replay: analysis.RunReplay, groups: Sequence[Group]
) -> tuple[list[Group], list[Group], list[Trajectory]]:
    """Score groups with the changed reward.

    Returns:
        (groups with recorded scores, groups with new scores, episodes without a new score); both groups contain the
        episodes that have both scores.
    """
    before: list[Group] = []
    after: list[Group] = []
    failed: list[Trajectory] = []
    try:
        for group in groups:
            rescored = await replay.rescore_group(group)
            both = [
                (a, b) for a, b in zip(group.trajectories, rescored.trajectories, strict=True) if b.score is not None
            ]
            failed += [each for each in rescored.trajectories if each.score is None]
            if both:
                before.append(replace(group, trajectories=tuple(old for old, _ in both)))
                after.append(replace(group, trajectories=tuple(new for _, new in both)))
    finally:
        await close_reward(replay.after.reward)
    return before, after, failed


def _mean_reward(groups: Sequence[Group]) -> float:
    rewards = [get_reward(each) for group in groups for each in group.trajectories]
    return fmean(rewards) if rewards else math.nan
