"""`whetstone why`: explain a number of a run, or why a step did (not) learn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import whetstone.analysis
from whetstone import record
from whetstone.cli import shell_completion
from whetstone.cli.format_message import load_judgment, show_judgment
from whetstone.errors import RunDirectoryError
from whetstone.failure_causes import format_causes
from whetstone.reporting import Journal, describe_learning, learning_rows, noise_advice
from whetstone.serving.online.explain_update import live_turns
from whetstone.serving.trainable_tokens import recorded_episodes
from whetstone.strict_json import to_json
from whetstone.tool_calls import describe_errors, describe_failing_tools, load_tool_statistics
from whetstone.tools.sanitize_text import sanitize_text

if TYPE_CHECKING:
    from whetstone.analysis import Bottleneck, Explanation


@click.command("why")
@click.argument("run_dir", type=click.Path(path_type=Path), shell_complete=shell_completion.run_folders)
@click.argument("trajectory", required=False, shell_complete=shell_completion.trajectory_ids)
@click.option("--step", type=int, help="Reinforcement step, from 1: its trajectories, and why it did (not) learn.")
@click.option("--turn", type=int, help="Only the tokens of this turn, from 0.")
@click.option("--token", type=int, help="Only this action token of the trajectory, from 0.")
@click.option("--weights/--no-weights", default=True, help="Recompute updates, for ratios and pushes.  [default: yes]")
@click.option("--slow", is_flag=True, help="Show the bottleneck of the run, and a remedy.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def why_command(
    run_dir: Path,
    trajectory: str | None,
    step: int | None,
    turn: int | None,
    token: int | None,
    weights: bool,
    slow: bool,
    as_json: bool,
) -> None:
    """Explain one number of RUN_DIR.

    Without TRAJECTORY: a table of steps with the data that each was trained on and the data that was dropped. For a run
    on offline episodes only: training and held-out losses, and whether to stop, regularize, continue or add data. With
    TRAJECTORY: its rewards, its baseline, its advantage, and each token's ratio, clipping and push. --step lists the
    IDs.

    For a live run: every response with a training signal, its source and its update; with an episode's ID, which of its
    tokens are trained and why the others are not. For a file of `whetstone serve --record`: the same for the recorded
    episodes.

    With --slow: where time is spent, the bottleneck, the most expensive tools, and what to change.
    """
    if run_dir.is_file():
        for option, value in (("--step", step), ("--turn", turn), ("--token", token), ("--slow", slow or None)):
            if value is not None:
                raise RunDirectoryError(f"{option}: has no effect on a file of recorded episodes")
        _explain_recorded(run_dir, trajectory, as_json)
        return
    record.run_recipe(run_dir)  # raises if it is not a run
    if slow:
        options = {"TRAJECTORY": trajectory, "--step": step, "--turn": turn, "--token": token}
        for option, argument in options.items():
            if argument is not None:
                raise RunDirectoryError(f"{option}: has no effect with --slow, which describes the whole run")
        _slow(run_dir, as_json)
        return
    if (run_dir / "live").is_dir():
        for option, value in (("--step", step), ("--turn", turn), ("--token", token)):
            if value is not None:
                raise RunDirectoryError(f"{option}: has no effect on a live run")
        _live(run_dir, trajectory, as_json)
        return
    if trajectory is None:
        for option, value in (("--turn", turn), ("--token", token)):
            if value is not None:
                raise RunDirectoryError(f"{option}: requires TRAJECTORY; --step N lists the IDs")
        _steps(run_dir, step, as_json)
        return
    explainer = whetstone.analysis.Explainer(run_dir, say=lambda line: click.echo(line, err=True))
    explanation = asyncio.run(explainer.explain_trajectory(trajectory, weights=weights))
    tokens = [each for each in explanation.tokens if turn is None or each.turn == turn]
    if token is not None:
        if not 0 <= token < len(explanation.tokens):
            raise RunDirectoryError(
                f"{trajectory} has {len(explanation.tokens)} action tokens, 0 to {len(explanation.tokens) - 1}"
            )
        tokens = [explanation.tokens[token]]
    if as_json:
        click.echo(to_json({**asdict(explanation), "tokens": [asdict(each) for each in tokens]}))
        return
    _show(explanation, tokens)


def _slow(run_dir: Path, as_json: bool) -> None:
    """Print the bottleneck of the last stage that samples; of the last stage if none does."""
    recipe, rows = record.run_recipe(run_dir).recipe, Journal(run_dir).read()
    sampling = any(row["stage"] == "reinforcement" for row in rows)
    stage = "reinforcement" if sampling else rows[-1]["stage"] if rows else ""
    rows = [row for row in rows if row["stage"] == stage]
    if not rows:
        raise RunDirectoryError(f"{run_dir}: the run has no recorded step yet")
    ahead = recipe.reinforcement.admit_ahead if recipe.reinforcement is not None else 0
    lines = record.stored_lines(run_dir)
    waits = whetstone.analysis.measure_waits(lines) if lines else None
    slowness = whetstone.analysis.find_bottleneck(
        rows, waits, admit_ahead=ahead, max_in_flight=recipe.rollout.max_episodes
    )
    if as_json:
        click.echo(to_json({"stage": stage, **asdict(slowness)}))
        return
    _show_slowness(slowness, stage)


def _show_slowness(slowness: Bottleneck, stage: str) -> None:
    click.secho(slowness.bottleneck, bold=True, nl=False)
    click.echo(f": {sanitize_text(slowness.said)}")
    click.echo(f"try: {slowness.attempt}")
    parts = ", ".join(f"{name} {share:.0%}" for name, share in slowness.parts.items() if share >= 0.005)
    click.echo(
        f"{slowness.steps} steps of {stage}, {slowness.seconds:.3g} s each: {parts}; "
        f"the slowest is {slowness.slowest_step}"
    )
    if slowness.waits is None or not slowness.waits.tools:
        return
    table = Table(box=None, pad_edge=False)
    for name in ("tool", "calls", "mean s", "95 % s", "most s", "of tool time"):
        table.add_column(name, justify="left" if name == "tool" else "right")
    for tool in slowness.waits.tools[:8]:
        numbers = (f"{tool.mean:.3g}", f"{tool.p95:.3g}", f"{tool.most:.3g}", f"{tool.share:.0%}")
        table.add_row(escape(sanitize_text(tool.name)), str(tool.calls), *numbers)
    Console().print(table)


def _steps(run_dir: Path, step: int | None, as_json: bool) -> None:
    journal = Journal(run_dir).read()
    rows = learning_rows(journal)
    if not rows and any(row["stage"] == "offline" for row in journal):
        _explain_offline(run_dir, journal, step, as_json)
        return
    if not rows:
        raise RunDirectoryError(f"{run_dir}: the run has no recorded step of reinforcement")
    wanted = [row for row in rows if step is None or row["from"] == step]
    if not wanted:
        raise RunDirectoryError(f"{run_dir}: no step {step}; steps are 1 to {rows[-1]['to']}")
    explainer = whetstone.analysis.Explainer(run_dir)
    trajectories = explainer.list_trajectories(step) if step is not None else []
    causes, changes = explainer.causes(), record.read_changes(run_dir)
    sampled = [row for row in journal if row["stage"] == "reinforcement"]
    tools = load_tool_statistics(sampled, run_dir)
    failing = describe_failing_tools(tools) if step is None else []
    summary = record.read_json(run_dir / "summary.json")
    if as_json:
        described = [{**row, "learned_from": describe_learning(row)} for row in wanted]
        report = {"failing_tools": failing, "steps": described, "failed": causes, "tools": tools}
        report |= {"trajectories": trajectories} if step is not None else load_judgment(summary, journal)
        report |= {"noise_advice": noise_advice(journal), "changes": [each.to_json() for each in changes]}
        click.echo(to_json(report))
        return
    for line in failing:
        click.secho(sanitize_text(line), bold=True)
    if step is None:
        show_judgment(summary, journal)
    table = Table(box=None, pad_edge=False)
    names = [name for name in wanted[0] if name not in ("from", "to")]
    for name in ("step", *names, "learned from"):
        last = name == "learned from"
        table.add_column(name, justify="left" if last else "right", no_wrap=last, overflow="fold")
    for row in wanted:
        cells = [_share(name, row[name]) for name in names]
        table.add_row(str(row["from"]), *cells, describe_learning(row))
    Console().print(table)
    for change in changes:
        click.echo(sanitize_text(f"the recipe changed {change}"))
    unmasked = max((row.get("unmasked") or 0.0 for row in wanted), default=0.0)
    if unmasked:
        click.echo(
            f"up to {100 * unmasked:.0f} % of the tokens of a step were written by tools and are TRAINED nevertheless: "
            "reinforcement.train_on_observations is on"
        )
    advice = noise_advice(journal) if step is None else None
    if advice is not None:
        click.echo(advice)
    for line in describe_errors(tools) if step is None else ():
        click.echo(sanitize_text(line))
    for name, tool in tools.items() if step is None else ():
        if tool.truncated:
            click.echo(sanitize_text(f"{tool.truncated} of {tool.calls} results of {name} were cut to "
                             "environment.max_result_characters"))  # fmt: skip
    if causes and step is None:
        click.echo(f"{sum(causes.values())} episodes have no score: {format_causes(causes, most=5)}")
    for name, reward, cause in trajectories:
        click.echo(
            sanitize_text(f"{'none' if reward is None else f'{reward:g}':>8}  {name}{f'  {cause}' if cause else ''}")
        )
    if trajectories:
        click.echo(f"whetstone why {run_dir} '{trajectories[0][0]}'   explains one of them")


def _explain_offline(run_dir: Path, journal: Sequence[Mapping[str, Any]], step: int | None, as_json: bool) -> None:
    """Print the results of an offline stage, and advice."""
    if step is not None:
        raise RunDirectoryError(f"--step: {run_dir} has only an offline stage; omit --step")
    looks = whetstone.analysis.held_out_evaluations(journal)
    advice = whetstone.analysis.find_advice(looks)
    if as_json:
        click.echo(to_json({"looks": [asdict(look) for look in looks], "advice": asdict(advice)}))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("step", "training loss", "held-out loss", "held-out KL", "value loss"):
        table.add_column(name, justify="right")
    for look in looks:
        numbers = (look.train, look.held_out, look.kl, look.value_loss)
        table.add_row(str(look.step), *("–" if number is None else f"{number:.4g}" for number in numbers))
    Console().print(table)
    click.secho(advice.finding, bold=True, nl=False)
    click.echo(f": {advice.said}")


def _live(run_dir: Path, episode: str | None, as_json: bool) -> None:
    """Print the training signals of a live run, by response."""
    turns = live_turns(run_dir, episode)
    if as_json:
        click.echo(to_json({"turns": [asdict(turn) for turn in turns]}))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("turn", "episode", "answer", "reward", "learned as", "update", "why"):
        table.add_column(name, justify="right" if name in ("turn", "answer", "reward") else "left", overflow="fold")
    for turn in turns:
        update = turn.state if turn.update is None else str(turn.update)
        cells = (turn.episode, str(turn.answer), f"{turn.reward:+g}", turn.learned_as, update, turn.why)
        table.add_row(str(turn.number), *(escape(sanitize_text(cell)) for cell in cells))
    Console().print(table)
    if episode is None:
        if turns:
            click.echo(f"whetstone why {run_dir} '{sanitize_text(turns[0].episode)}'   shows its trained tokens")
        return
    for turn in turns:
        for summary in turn.tokens:
            verb = "trained" if summary.trained else "not trained"
            click.echo(
                sanitize_text(
                    f"turn {turn.number}, {summary.by}: {summary.said[:60]!r}: "
                    f"{summary.count} tokens {verb}: {summary.why}"
                )
            )


def _explain_recorded(path: Path, episode: str | None, as_json: bool) -> None:
    """Print which tokens of recorded episodes can be trained, and why others cannot."""
    episodes = recorded_episodes(path, episode)
    if as_json:
        click.echo(to_json({"episodes": [asdict(each) for each in episodes]}))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("episode", "reward", "turns", "segments", "drawn", "trained", "why"):
        table.add_column(name, justify="left" if name in ("episode", "why") else "right", overflow="fold")
    for each in episodes:
        reward = "none" if each.reward is None else f"{each.reward:g}"
        numbers = (reward, str(len(each.turns)), str(each.segments), str(each.drawn), str(each.trained))
        table.add_row(escape(sanitize_text(each.id)), *numbers, escape(sanitize_text("; ".join(each.why))))
    Console().print(table)
    if episode is None:
        if episodes:
            click.echo(f"whetstone why {path} '{sanitize_text(episodes[0].id)}'   shows its trainable tokens")
        return
    for each in episodes:
        for turn in each.turns:
            why = "".join(f"; {reason}" for reason in turn.why)
            click.echo(
                sanitize_text(
                    f"turn {turn.turn}: {turn.said[:60]!r}: {turn.trained} of {turn.drawn} tokens can be trained{why}"
                )
            )


def _share(name: str, value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if name == "age" else f"{100 * value:.0f} %"


def _show(explanation: Explanation, tokens: Sequence[Any]) -> None:
    click.secho(sanitize_text(explanation.id), bold=True)
    click.echo(f"task {sanitize_text(explanation.task)}, taken by update {explanation.update}")
    width = max(len(link.what) for link in explanation.chain)
    for link in explanation.chain:
        note = f"   {link.said}" if link.said else ""
        click.echo(sanitize_text(f"  {link.what:<{width}}  {_number(link.value)}{note}"))
    if not tokens:
        return
    click.echo(f"{len(tokens)} action tokens" + (f", {explanation.from_weights}" if explanation.from_weights else ""))
    table = Table(box=None, pad_edge=False)
    for name in ("turn", "token", "sampled at", "version", "advantage", "ratio", "clipped", "weight", "push"):
        table.add_column(name, justify="left" if name == "token" else "right")
    for each in tokens:
        last: Mapping[str, float] = each.passes[-1] if each.passes else {}
        table.add_row(
            str(each.turn),
            escape(repr(each.text)),  # brackets in sampled text are not markup
            f"{each.sampler_logprob:.4f}",
            str(each.version),
            f"{each.advantage:+.4g}",
            _cell(last, "policy/ratio", "{:.4f}"),
            {0.0: "no", 1.0: "yes"}.get(last.get("policy/clip_fraction", -1.0), ""),
            _cell(last, "importance/weight_mean", "{:.3g}"),
            _cell(last, "push", "{:+.3g}"),
        )
    Console().print(table)
    if tokens[0].passes:
        click.echo("push: the derivative of the update's loss in the token's log-prob; below 0 it becomes more likely")


def _cell(values: Mapping[str, float], key: str, form: str) -> str:
    return form.format(values[key]) if key in values else ""


def _number(value: Any) -> str:
    if isinstance(value, list):
        return "[" + " ".join(_number(each) for each in value) + "]"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value)
