"""`whetstone data inject-errors`: labeled rows for judges and step scorers from a run's solved episodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import whetstone.analysis
import whetstone.assembly
import whetstone.training
from whetstone.analysis.injected_errors import NO_ERROR, PROPOSALS, InjectionReport, LabeledEpisode, inject_errors
from whetstone.chat import ToolSpec
from whetstone.cli.effects import allow_effects_option, call_tools_option, check_policy, report_refused
from whetstone.errors import DataError
from whetstone.rewards.judge_rewards.judge_input import format_episode
from whetstone.rewards.protocol import close_reward
from whetstone.strict_json import to_json
from whetstone.tools.protocol import is_replayable

_QUESTION = "In which turn is the first error, and of which kind? Kinds: {kinds}. Answer with JSON."


@click.command("inject-errors")
@click.argument("run_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Output file.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice([*PROPOSALS]), help="Kind of error, repeatable.  [default: all]"
)
@click.option("-n", "--max-per-kind", type=click.IntRange(min=1), default=100, show_default=True, help="Rows per kind.")
@click.option("--seed", type=int, default=0, show_default=True, help="Determines the errors and the order of the rows.")
@click.option(
    "--as",
    "form",
    type=click.Choice(["episodes", "questions", "pairs"]),
    default="episodes",
    show_default=True,
    help="Messages with labels; questions about the turn and kind with their answer; or right and changed episode.",
)
@call_tools_option
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inject_errors_command(
    run_dir: Path,
    output: Path,
    kinds: tuple[str, ...],
    max_per_kind: int,
    seed: int,
    form: str,
    call_tools: bool,
    allow_effects: bool,
    as_json: bool,
) -> None:
    """Insert known errors into the solved episodes of RUN_DIR, and write labeled rows for judges and step scorers.

    One action is changed: a wrong argument, a wrong tool, a dropped call or a misread result. The episode is replayed
    in its environment, and is only written if the environment responds differently from the error on or the task is no
    longer solved. Each kind has equally many rows, and as many rows have no error. The run stays as it is.
    """
    if output.exists():
        raise DataError(f"{output}: exists; choose another name")
    replay = whetstone.analysis.RunReplay(run_dir)
    effects = whetstone.training.tool_effects(replay.recorded)
    calls = check_policy(effects, allow_effects=allow_effects, call_tools=call_tools)
    report_refused(calls, effects)
    _, make, reward = whetstone.assembly.build_scoring_components(replay.recorded, calls)
    if not is_replayable(make()):
        raise DataError(f"{run_dir}: the environment cannot be replayed, so no error can be confirmed in it")
    groups = [replay.load_group(k) for k in sorted(replay.record.admitted) if replay.record.has_group(k)]

    async def inject() -> InjectionReport:
        try:
            return await inject_errors(
                groups,
                make,
                reward,
                replay.before.offered_tools,
                kinds=kinds or tuple(PROPOSALS),
                seed=seed,
                run_seed=replay.recorded.recipe.seed,
                max_per_kind=max_per_kind,
            )
        finally:
            await close_reward(reward)

    try:
        report = asyncio.run(inject())
    except DataError as error:
        raise DataError(f"{run_dir}: {error}") from None
    rows = [row for each in report.rows for row in encode_labeled_episode(each, form, replay.before.offered_tools)]
    output.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    counts = {"rows": len(rows), "solved": report.solved, "not_reproduced": report.not_reproduced}
    counts["with_failed_calls"] = report.with_failed_calls
    if as_json:
        click.echo(to_json({"path": str(output), **counts, "inserted": report.counts}))
        return
    click.echo(f"{output}: {len(rows)} {form}, equally many of each kind")
    by_kind = ", ".join(f"{count} {kind}" for kind, count in report.counts.items() if kind != NO_ERROR)
    click.echo(f"inserted: {by_kind}")
    click.echo(
        f"of {report.solved} solved episodes {report.not_reproduced} could not be replayed, and "
        f"{report.with_failed_calls} were left out because a call failed"
    )


def encode_labeled_episode(labeled: LabeledEpisode, form: str, tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return the rows of a labeled episode; a pair needs an error.

    Args:
        labeled: Episode with its label.
        form: `episodes`, `questions` or `pairs`.
        tools: Tools of the environment.
    """
    error, offered = labeled.error, [spec.to_openai() for spec in tools]
    turn = None if error is None else error.turn + 1
    messages = [message.to_openai() for message in labeled.episode.messages]
    if form == "questions":
        question = f"{format_episode(labeled.episode)}\n\n{_QUESTION.format(kinds=', '.join((NO_ERROR, *PROPOSALS)))}"
        answer = json.dumps({"turn": turn, "error": labeled.error_kind})
        return [{"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}]
    if form == "pairs":
        chosen = [message.to_openai() for message in labeled.source.messages]
        return [] if error is None else [{"chosen": chosen, "rejected": messages, "tools": offered}]
    return [
        {
            "id": labeled.episode.id,
            "task": labeled.task.id,
            "messages": messages,
            "tools": offered,
            "turn": turn,
            "error": labeled.error_kind,
            "original": error.original if error else "",
            "changed": error.changed if error else "",
            "step_labels": labeled.step_labels,
            "solved": labeled.episode.solved,
        }
    ]
