"""Formatting of messages, tool statistics, results and alarms for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from whetstone.evaluation.stage_results import StageResult, read_stage_results
from whetstone.json_lines import UNREADABLE
from whetstone.reporting.alarms import find_alarms, stored_alarms
from whetstone.tools.sanitize_text import sanitize_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from whetstone.chat import Message
    from whetstone.tool_calls import ToolStatistics

_MAX_TOOLS = 8


def format_message(message: Message) -> str:
    """Format a message for the terminal: its role, text and tool calls."""
    calls = "".join(f"  → {call.name}({call.arguments})" for call in message.tool_calls)
    unread = "".join(f"  ✗ {what}" for what in message.malformed)
    return sanitize_text(f"  {message.role:<10} {message.text}{calls}{unread}")


def show_tools(tools: Mapping[str, ToolStatistics]) -> None:
    """Print one line per tool: calls, errors, cut results, seconds.

    The most frequently called tools come first.
    """
    for name, tool in list(tools.items())[:_MAX_TOOLS]:
        errors = f"  errors {tool.error_fraction:.0%}" if tool.error_fraction else ""
        errors += f" ({tool.failed / tool.calls:.0%} of the tool)" if tool.failed else ""
        cut = f"  cut {tool.truncated / tool.calls:.0%}" if tool.truncated else ""
        most = f"  most often: {tool.error}" if tool.error else ""
        seconds = f"  {tool.seconds_mean:.2g} s on average, {tool.seconds_max:.2g} s at most"
        click.echo(sanitize_text(f"tool    {name}  calls {tool.calls}{errors}{cut}{seconds}{most}"))


def _stage_results(summary: Mapping[str, Any] | None) -> list[StageResult]:
    try:
        return read_stage_results(summary or {})
    except UNREADABLE as error:
        reason = f"{type(error).__name__}: {error}"
        click.echo(sanitize_text(f"summary.json: is damaged, its stages are not compared: {reason}"), err=True)
        return []


def load_judgment(summary: Mapping[str, Any] | None, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of a run's stages and its alarms, as JSON values.

    Args:
        summary: Content of `summary.json`; None if the run is not finished.
        rows: Rows of `metrics.jsonl`.
    """
    stages = [result.to_json() for result in _stage_results(summary)]
    alarms = [asdict(alarm) for alarm in find_alarms(rows)]
    return {"stages": stages, "alarms": alarms, "stored_alarms": stored_alarms(rows)}


def show_judgment(summary: Mapping[str, Any] | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the result of each stage of a run, and its alarms.

    Args:
        summary: Content of `summary.json`; None if the run is not finished.
        rows: Rows of `metrics.jsonl`.
    """
    for result in _stage_results(summary):
        click.secho(sanitize_text(result.sentence), fg={"better": "green", "worse": "red"}.get(result.outcome))
    alarms = find_alarms(rows)
    for alarm in alarms:
        click.secho(sanitize_text(f"ALARM {alarm.line}; check: {alarm.check}"), fg="yellow")
    raised = {alarm.name for alarm in alarms}
    for name, (first, last) in stored_alarms(rows).items():
        if name not in raised:
            click.echo(f"alarm during the run: {name}, steps {first} to {last}")
