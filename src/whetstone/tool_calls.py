"""Statistics of tool calls, and detection of tools that fail in every call.

Errors have two causes. The *model* causes a call of an unknown tool, invalid arguments, and `ToolError`. The *tool*
causes any other exception, a timeout, and a backend that is unavailable. A tool of which no call succeeds is reported
in both cases, with different remedies (`describe_failing_tools`). For an exception such as `KeyError`, the cause is
undecided: a bug, or arguments for which the tool should raise `ToolError` (`may_be_caused_by_arguments`).

Note:
    Names of tools that do not exist are written by the model. Their calls are one entry, `UNKNOWN`, so that the number
    of metrics is bounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whetstone.failure_causes import count_causes
from whetstone.json_lines import read_objects
from whetstone.trajectory import CallRecord, Trajectory
from whetstone.user_code import remove_place

UNKNOWN = "(unknown tools)"
"""Entry for all calls of tools that do not exist."""
MIN_CALLS = 5
"""Number of calls that all failed, after which a tool is reported during a run."""
_MIN_REJECTED_CALLS = 50
"""Same number for errors of the model, which an untrained model makes often."""
_MAX_TOOLS = 40
"""Maximum number of tools with metrics: those with the most calls."""
_MAX_EPISODES = 5_000
"""Maximum number of stored episodes that are read for error messages: the last ones."""
_MOSTLY = 0.5
"""Fraction of the calls of a step above which failed calls and cut results are reported."""
_ANSWERED = ("ok", "stopped")
_OF_TOOL = ("tool_failed", "timeout", "unavailable")
_WITHOUT_TOOL = ("malformed_call", "too_many_calls", "not_called")
TIMED_OUT = "did not answer within"
"""Error of a call that exceeded `environment.tool_timeout_seconds`, after the name of the tool."""
RATE_LIMITED = "set environment.max_calls_per_second"
"""Start of the remedy in the error of a call that its backend refused with HTTP 429."""
_SQLITE_THREAD = "SQLite objects created in a thread"
_OF_ARGUMENTS = ("IndexError", "KeyError", "LookupError", "ValueError")
"""Exception types of a tool that arguments, rather than a bug, can cause."""


@dataclass(frozen=True, slots=True)
class ToolStatistics:
    """Number, errors and durations of the calls of one tool."""

    calls: int
    """Number of calls."""
    failed: int
    """Number of errors that the tool caused: exceptions, timeouts, an unavailable backend."""
    rejected: int
    """Number of errors that the model caused: invalid arguments, `ToolError`, a call over budget, an unknown tool."""
    truncated: int
    """Number of results that were cut to `max_result_characters`."""
    seconds_mean: float
    """Mean duration of a call, in seconds."""
    seconds_max: float
    """Longest duration of a call, in seconds."""
    error: str = ""
    """Most frequent error message, on one line; messages that differ only in numbers are counted as one."""
    unavailable: int = 0
    """Number of errors after all attempts because the backend was unavailable; part of `failed`, and 0 if unknown."""

    @property
    def error_fraction(self) -> float:
        """Fraction of the calls that failed, for any cause."""
        return (self.failed + self.rejected) / self.calls


def compute_tool_statistics(calls: Iterable[CallRecord]) -> dict[str, ToolStatistics]:
    """Compute statistics of tool calls by tool, the most frequently called first.

    Calls of tools that do not exist are one entry, `UNKNOWN`.
    """
    by_tool: defaultdict[str, list[CallRecord]] = defaultdict(list)
    for call in calls:
        if call.outcome not in _WITHOUT_TOOL:
            by_tool[UNKNOWN if call.outcome == "unknown_tool" else call.name].append(call)
    names = sorted(by_tool, key=lambda name: -len(by_tool[name]))
    return {name: _statistics_of(by_tool[name]) for name in names}


def compute_tool_metrics(statistics: Mapping[str, ToolStatistics]) -> dict[str, float]:
    """Convert tool statistics to metrics such as `tools/TOOL/calls`; see `metric_names.py`.

    Only the most frequently called tools have metrics, so that their number is bounded.
    """
    metrics: dict[str, float] = {}
    for name, tool in list(statistics.items())[:_MAX_TOOLS]:
        values = {
            "calls": float(tool.calls),
            "error_fraction": tool.error_fraction,
            "failed_fraction": tool.failed / tool.calls,
            "truncated_fraction": tool.truncated / tool.calls,
            "seconds_mean": tool.seconds_mean,
            "seconds_max": tool.seconds_max,
        }
        metrics |= {f"tools/{name}/{key}": value for key, value in values.items()}
    return metrics


def read_calls(run_dir: Path) -> Iterator[CallRecord]:
    """Yield the tool calls of a run's last stored training episodes.

    Damaged lines of the file are left out.
    """
    num_left = _MAX_EPISODES
    for path in sorted((run_dir / "trajectories").glob("step-*.jsonl"), reverse=True):
        for row in read_objects(path, _turns_of, on_damage=lambda number, reason: None):
            for turn in row:
                for call in turn.get("calls") or ():
                    yield CallRecord(*call[:6])
                    yield from (CallRecord(*inner[0]) for inner in (call[6] if len(call) > 6 else ()))
            num_left -= 1
        if num_left <= 0:
            return


def load_tool_statistics(rows: Iterable[Mapping[str, Any]], run_dir: Path) -> dict[str, ToolStatistics]:
    """Compute tool statistics over many steps of a run, the most frequently called tool first.

    Args:
        rows: Metrics of the steps.
        run_dir: Run directory, whose trajectories are read for error messages if there are errors.
    """
    metrics = [row for row in rows if "step" in row]
    names = dict.fromkeys(name for row in metrics for name in _tools_of(row))
    last: dict[str, ToolStatistics] = {}
    if any(row.get(f"tools/{name}/error_fraction") for row in metrics for name in names):
        last = compute_tool_statistics(read_calls(run_dir))
    statistics = {name: _sum_steps(name, metrics, last.get(name)) for name in names}
    return dict(sorted(statistics.items(), key=lambda entry: -entry[1].calls))


def describe_failing_tools(statistics: Mapping[str, ToolStatistics]) -> list[str]:
    """Format one line per tool that failed in all of its calls, with cause and remedy.

    Tools that caused the failures themselves come first.

    >>> describe_failing_tools({"lookup": ToolStatistics(3, 3, 0, 0, 0.1, 0.1, "TypeError: 'db'")})
    ["lookup failed in 3 of 3 calls: TypeError: 'db'; repair the tool, no call of it succeeds"]
    """
    failing = [(name, tool) for name, tool in statistics.items() if tool.failed + tool.rejected == tool.calls]
    if len(statistics) > 1:  # calls of other tools succeed or are reported
        failing = [(name, tool) for name, tool in failing if name != UNKNOWN]
    return [f"{_describe(name, tool)}; {_remedy(name, tool)}" for name, tool in sorted(failing, key=_by_tool_failures)]


def describe_errors(statistics: Mapping[str, ToolStatistics]) -> list[str]:
    """Format one line per tool that failed in some of its calls, with the most frequent error."""
    mixed = [(name, tool) for name, tool in statistics.items() if 0 < tool.failed + tool.rejected < tool.calls]
    return [
        f"{name}: {tool.failed} of {tool.calls} calls failed, {tool.rejected} by arguments of the model; most frequent "
        f"error: {tool.error}"
        for name, tool in mixed
    ]


def find_failing_tools(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return an alarm if a tool failed in most calls of the last step with calls.

    Args:
        rows: Metrics of the steps.

    Returns:
        Name, message, check, remedy and metrics of the alarm; empty if there is none.
    """
    counts = _count_mostly(rows, "failed_fraction")
    if not counts:
        return ()
    message = "; ".join(f"{name} failed in {count} of {calls} calls" for name, (count, calls) in counts.items())
    return (
        "failing tools",
        f"{message} of the last step, by an exception, a timeout or an unavailable backend",
        "`whetstone why RUN` has the most frequent error of each tool",
        "repair the tool, or start its backend; for wrong arguments, raise `whetstone.ToolError` with a message for "
        "the model; for a slow tool, increase environment.tool_timeout_seconds",
        *(f"tools/{name}/failed_fraction" for name in counts),
    )


def find_cut_results(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return an alarm if most results of a tool were cut in the last step with calls.

    Args:
        rows: Metrics of the steps.

    Returns:
        Name, message, check, remedy and metrics of the alarm; empty if there is none.
    """
    counts = _count_mostly(rows, "truncated_fraction")
    if not counts:
        return ()
    message = "; ".join(f"{count} of {calls} results of {name} were cut" for name, (count, calls) in counts.items())
    return (
        "cut results",
        f"{message} in the last step: the model reads only head and tail",
        "trajectories with calls of this tool: is the part that matters missing?",
        "shorter results of the tool, or a higher environment.max_result_characters",
        *(f"tools/{name}/truncated_fraction" for name in counts),
    )


def may_be_caused_by_arguments(error: str) -> bool:
    """Return whether wrong arguments, rather than a bug of the tool, can have caused an error message of a tool."""
    return remove_place(error).startswith(_OF_ARGUMENTS)


class ToolWatch:
    """Monitor that logs a tool once if each of its first calls fails.

    All collectors of a run share one monitor.

    Args:
        log: Callback that receives the line.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._calls: defaultdict[str, list[CallRecord]] = defaultdict(list)
        self._is_done: set[str] = set()
        """Tools that were answered once, or were reported."""
        self.reported: list[str] = []
        """Lines that were reported."""

    def record_episode(self, trajectory: Trajectory) -> None:
        """Count the tool calls of one more episode, and log tools of which every call failed."""
        for call in trajectory.calls:
            if call.name in self._is_done or call.outcome in (*_WITHOUT_TOOL, "unknown_tool"):
                continue
            if call.outcome in _ANSWERED:
                self._is_done.add(call.name)
                self._calls.pop(call.name, None)
                continue
            self._calls[call.name].append(call)
            statistics = compute_tool_statistics(self._calls[call.name])
            if statistics[call.name].failed >= MIN_CALLS or statistics[call.name].calls >= _MIN_REJECTED_CALLS:
                self._is_done.add(call.name)
                for line in describe_failing_tools(statistics):
                    self.reported.append(line)
                    self._log(line)


def _statistics_of(calls: Sequence[CallRecord]) -> ToolStatistics:
    failed = sum(call.outcome in _OF_TOOL for call in calls)
    errors = [call.error or call.outcome for call in calls if call.outcome not in _ANSWERED]
    return ToolStatistics(
        len(calls),
        failed,
        len(errors) - failed,
        sum(call.truncated for call in calls),
        round(sum(round(call.seconds, 6) for call in calls) / len(calls), 6),  # as exact as stored episodes
        round(max(call.seconds for call in calls), 6),
        next(iter(count_causes(errors, most=1)), ""),
        sum(call.outcome == "unavailable" for call in calls),
    )


def _turns_of(row: dict[str, Any]) -> list[Mapping[str, Any]]:
    return list(row["turns"])


def _tools_of(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of the tools that have metrics in a step."""
    return [
        key[len("tools/") : -len("/calls")] for key in metrics if key.startswith("tools/") and key.endswith("/calls")
    ]


def _count_mostly(rows: Sequence[Mapping[str, Any]], fraction: str) -> dict[str, tuple[int, int]]:
    """Return (count, calls) of each tool for which a fraction is at least one half.

    The last step with calls is considered. Tools with fewer than five calls are left out.
    """
    row: Mapping[str, Any] = next((row for row in reversed(rows) if _tools_of(row)), {})
    calls = {name: round(row[f"tools/{name}/calls"] or 0) for name in _tools_of(row)}
    counts = {name: round(number * (row.get(f"tools/{name}/{fraction}") or 0)) for name, number in calls.items()}
    return {n: (counts[n], calls[n]) for n in calls if calls[n] >= MIN_CALLS and counts[n] >= _MOSTLY * calls[n]}


def _sum_steps(name: str, rows: Sequence[Mapping[str, Any]], last: ToolStatistics | None) -> ToolStatistics:
    def total(fraction: str) -> int:
        return round(float(sum((row.get(f"tools/{name}/{fraction}") or 0) * counted for row, counted in steps)))

    steps = [(row, row[f"tools/{name}/calls"]) for row in rows if row.get(f"tools/{name}/calls")]
    calls, failed = round(sum(counted for _, counted in steps)), total("failed_fraction")
    seconds = sum((row.get(f"tools/{name}/seconds_mean") or 0) * counted for row, counted in steps)
    longest = max((row.get(f"tools/{name}/seconds_max") or 0 for row, _ in steps), default=0.0)
    rejected = total("error_fraction") - failed
    error, unavailable = (last.error, last.unavailable) if last is not None else ("", 0)
    mean, truncated = seconds / max(1, calls), total("truncated_fraction")
    return ToolStatistics(calls, failed, rejected, truncated, mean, longest, error, unavailable)


def _by_tool_failures(entry: tuple[str, ToolStatistics]) -> int:
    return -entry[1].failed


def _describe(name: str, tool: ToolStatistics) -> str:
    if name == UNKNOWN:
        return f"{tool.calls} of {tool.calls} calls named a tool that does not exist: {tool.error}"
    if not tool.failed:
        return f"{name} rejected the arguments in {tool.calls} of {tool.calls} calls: {tool.error}"
    both = f" ({tool.rejected} of them by arguments of the model)" if tool.rejected else ""
    return f"{name} failed in {tool.calls} of {tool.calls} calls{both}: {tool.error}"


def _remedy(name: str, tool: ToolStatistics) -> str:
    if not tool.failed:
        return (
            "the model does not know the tools: look at `whetstone rollout`, or start with demonstrations (supervised)"
        )
    if _SQLITE_THREAD in tool.error:
        return "set environment.single_thread: true, and open the connection in the constructor of a class of tools"
    if RATE_LIMITED in tool.error:
        return "its backend limits the rate of calls; a run that stopped continues with --resume"
    if 2 * tool.unavailable > tool.failed:
        return "start its backend, no call of it succeeds; a run that stopped continues with --resume"
    if tool.error.startswith(f"{name} {TIMED_OUT}"):
        return "increase environment.tool_timeout_seconds if the tool is slow, otherwise repair it"
    if may_be_caused_by_arguments(tool.error):
        return (
            "the arguments may be the cause: raise whetstone.ToolError for arguments that the model must correct, "
            "otherwise repair the tool"
        )
    return "repair the tool, no call of it succeeds"
