"""Dashboard of a run in the terminal: a panel with the current metrics and a sparkline of each.

    reinforcement 12/30  ━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━━   0:01:12, 0:01:48 left
    reward   0.41  ▁▂▂▃▃▅▅▆▆▇█      success  52 %  ▁▁▂▃▃▅▅▆▇▇█

Messages (failures with their cause, evaluations) are printed above the panel and remain; a finished stage leaves one
line.

Note:
    A dedicated thread renders the panel. The data that it reads is therefore append-only. Text of models and tools is
    shown without escape sequences, which would move the cursor.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text

from whetstone.reporting.alarms import Alarm
from whetstone.reporting.progress import Progress, ProgressBar, format_step
from whetstone.tools.sanitize_text import sanitize_text

_CURVES = (
    ("reward/mean", "reward", "{:.2f}"),
    ("episode/success", "success", "{:.0%}"),
    ("loss/total", "loss", "{:.3f}"),
    ("policy/entropy", "entropy", "{:.2f}"),
    ("episode/turns", "turns", "{:.1f}"),
    ("episode/tool_calls", "tool calls", "{:.1f}"),
    ("policy/reference_kl", "kl", "{:.4f}"),
    ("policy/update_kl", "update kl", "{:.4f}"),
    ("update/grad_norm", "gradient", "{:.2g}"),
    ("group/zero_variance_fraction", "all equal", "{:.0%}"),
    ("throughput/tokens_per_second", "tokens/s", "{:,.0f}"),
)
"""(metric, label, format), in this order."""
_BARS = "▁▂▃▄▅▆▇█"
_TWO_COLUMNS = 76
"""Minimum width of the terminal for two columns, in characters."""


def shows_a_dashboard(*, plain_lines: bool) -> bool:
    """Return whether the terminal supports the dashboard and plain lines are not requested (`NO_COLOR`).

    Args:
        plain_lines: Whether plain lines are requested.
    """
    console = Progress().console
    return console.is_terminal and not console.is_dumb_terminal and not plain_lines and "NO_COLOR" not in os.environ


class Dashboard(Progress):
    """Progress of a run as a panel in the terminal.

    Args:
        title: Title of the panel.
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title
        self.history: dict[str, list[float]] = {}
        """Values so far, by metric."""
        self._failed = 0
        self._bar = _DashboardStage("", 0, 0, self)

    @contextmanager
    def stage(self, name: str, total: int, *, done: int = 0) -> Iterator[ProgressBar]:
        """Show a stage in the panel within the block; see `Progress.stage`."""
        self._bar = _DashboardStage(name, total, done, self)
        results = sys.stdout.isatty()  # output to a pipe is not printed above the panel
        drawn = Live(
            console=self.console,
            get_renderable=self.render_panel,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=results,
        )
        with drawn:
            yield self._bar
        if self._bar.last:
            self.say(f"{name} {self._bar.done}/{total}  {format_step(self._bar.last)}")

    def say(self, text: str) -> None:
        """Print a line above the panel."""
        super().say(sanitize_text(text))

    def is_on_output(self, text: str) -> bool:
        """Return whether a printed line went where standard output goes; see `Progress.is_on_output`."""
        return super().is_on_output(sanitize_text(text))

    def add_step(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of a step to the curves of the panel."""
        for name, value in metrics.items():
            if isinstance(value, int | float) and math.isfinite(value):
                self.history.setdefault(name, []).append(float(value))
        self._failed += int(metrics.get("episode/invalid") or 0)

    def render_panel(self) -> RenderableType:
        """Build the panel from the current metrics; called by the rendering thread."""
        bar, width = self._bar, self.console.width
        head = Table.grid(padding=(0, 1), expand=True)
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_column(justify="right", no_wrap=True)
        total = max(1, bar.total)
        head.add_row(
            Text(sanitize_text(f"{bar.name} {bar.done}/{bar.total}"), style="bold"),
            Bar(total=total, completed=min(bar.done, total)),
            bar.clock(),
        )
        parts: list[RenderableType] = [head]
        if rows := self._rows(width):
            parts.append(rows)
        parts += [Text(sanitize_text(line), style="dim", no_wrap=True, overflow="ellipsis") for line in self._below()]
        parts += [Text(f"! {alarm.line}", style="yellow") for alarm in bar.alarms]
        return Panel(Group(*parts), title=Text(sanitize_text(self.title)), title_align="left", border_style="dim")

    def _rows(self, width: int) -> Table | None:
        curves = [(key, name, form) for key, name, form in _CURVES if self.history.get(key)]
        if not curves:
            return None
        columns = 2 if width >= _TWO_COLUMNS else 1
        room = max(0, (width - 6) // columns - 25)
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(columns):
            table.add_column(no_wrap=True, style="dim", width=10)
            table.add_column(no_wrap=True, justify="right", width=9)
            table.add_column(no_wrap=True, style="cyan", width=room)
        cells = [
            (name, form.format(self.history[key][-1]), format_sparkline(self.history[key], room))
            for key, name, form in curves
        ]
        for first in range(0, len(cells), columns):
            row = cells[first : first + columns]
            table.add_row(*(cell for entry in row for cell in entry))
        return table

    def _below(self) -> list[str]:
        line = self._bar.line()
        failed = f"{self._failed} episodes without a score so far" if self._failed else ""
        return [each for each in (line, failed) if each]


class _DashboardStage(ProgressBar):
    """Progress of one stage, shown in the dashboard instead of as a bar."""

    def __init__(self, name: str, total: int, done: int, dashboard: Dashboard) -> None:
        super().__init__(name, total, done, None)
        self.dashboard = dashboard
        self.line: Callable[[], str] = str
        self.alarms: Sequence[Alarm] = ()
        self.last: Mapping[str, float] = {}

    def watch(self, line: Callable[[], str]) -> None:
        """Show the result of `line` at every refresh; see `ProgressBar.watch`."""
        self.line = line

    def show_alarms(self, alarms: Sequence[Alarm]) -> None:
        """Show the current alarms in the panel; see `ProgressBar.show_alarms`."""
        self.alarms = alarms

    def advance(self, metrics: Mapping[str, float], *, by: int = 1) -> None:
        """Advance by `by` steps and show their metrics; see `ProgressBar.advance`."""
        self.done += by
        if metrics:
            self.last = dict(metrics)
            self.dashboard.add_step(metrics)

    def clock(self) -> Text:
        """Format the elapsed time and the estimated remaining time of the stage."""
        elapsed = time.monotonic() - self.begun
        left = elapsed / (self.done - self.first) * (self.total - self.done) if self.done > self.first else None
        text = f"{_clock(elapsed)}, {_clock(left)} left" if left is not None else _clock(elapsed)
        return Text(text, style="dim")


def format_sparkline(values: Sequence[float], width: int) -> str:
    """Format values as a line of bars, scaled between their minimum and maximum.

    If there are more values than characters, each bar is the mean of an equal part of the values.

    Args:
        values: Values; not empty if `width` is positive.
        width: Number of characters.
    """
    count = min(width, len(values))
    if count <= 0:
        return ""
    edges = [k * len(values) // count for k in range(count + 1)]
    means = [math.fsum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return _BARS[0] * count
    return "".join(_BARS[min(len(_BARS) - 1, int((mean - low) / (high - low) * len(_BARS)))] for mean in means)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))
