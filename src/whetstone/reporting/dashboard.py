"""What does a person see in a terminal while a run goes on? A panel that is drawn anew, with curves of a line each.

    reinforcement 12/30  ━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━━   0:01:12, 0:01:48 left
    reward   0.41  ▁▂▂▃▃▅▅▆▆▇█      success  52 %  ▁▁▂▃▃▅▅▆▇▇█

What is said (what failed and why, evaluations) stands above it and stays; of a stage that is over a line stays.

Easy to get wrong: the panel is drawn by a thread of its own. What it reads is only ever added to; and text of models
and tools is shown without its escapes, or it would move the cursor.
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
from whetstone.reporting.progress import Progress, ProgressBar, said_of
from whetstone.tools.plain_text import plain

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
"""(metric, what it is called, how it is written), in this order."""
_BARS = "▁▂▃▄▅▆▇█"
_TWO_COLUMNS = 76
"""Letters of a line from which two numbers stand in one."""


def shows_a_dashboard(*, plain_lines: bool) -> bool:
    """Whether the terminal can: there is one, it moves its cursor, and nobody asked for plain lines (`NO_COLOR`).

    Args:
        plain_lines: Somebody did.
    """
    console = Progress().console
    return console.is_terminal and not console.is_dumb_terminal and not plain_lines and "NO_COLOR" not in os.environ


class Dashboard(Progress):
    """Shows a run in a panel.

    Args:
        title: Of the run.
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title
        self.history: dict[str, list[float]] = {}
        """By metric, its values so far."""
        self._failed = 0
        self._bar = _Watched("", 0, 0, self)

    @contextmanager
    def stage(self, name: str, total: int, *, done: int = 0) -> Iterator[ProgressBar]:
        """See `Progress.stage`."""
        self._bar = _Watched(name, total, done, self)
        results = sys.stdout.isatty()  # what is printed into a pipe goes there, not above the panel
        drawn = Live(
            console=self.console,
            get_renderable=self.panel,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=results,
        )
        with drawn:
            yield self._bar
        if self._bar.last:
            self.say(f"{name} {self._bar.done}/{total}  {said_of(self._bar.last)}")

    def say(self, text: str) -> None:
        """A line above the panel."""
        super().say(plain(text))

    def heard(self, metrics: Mapping[str, float]) -> None:
        """A step is made."""
        for name, value in metrics.items():
            if isinstance(value, int | float) and math.isfinite(value):
                self.history.setdefault(name, []).append(float(value))
        self._failed += int(metrics.get("episode/invalid") or 0)

    def panel(self) -> RenderableType:
        """The panel as it is now."""
        bar, width = self._bar, self.console.width
        head = Table.grid(padding=(0, 1), expand=True)
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_column(justify="right", no_wrap=True)
        total = max(1, bar.total)
        head.add_row(
            Text(plain(f"{bar.name} {bar.done}/{bar.total}"), style="bold"),
            Bar(total=total, completed=min(bar.done, total)),
            bar.clock(),
        )
        parts: list[RenderableType] = [head]
        if rows := self._rows(width):
            parts.append(rows)
        parts += [Text(plain(line), style="dim", no_wrap=True, overflow="ellipsis") for line in self._below()]
        parts += [Text(f"! {alarm.line}", style="yellow") for alarm in bar.alarms]
        return Panel(Group(*parts), title=Text(plain(self.title)), title_align="left", border_style="dim")

    def _rows(self, width: int) -> Table | None:
        shown = [(key, name, form) for key, name, form in _CURVES if self.history.get(key)]
        if not shown:
            return None
        columns = 2 if width >= _TWO_COLUMNS else 1
        room = max(0, (width - 6) // columns - 25)
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(columns):
            table.add_column(no_wrap=True, style="dim", width=10)
            table.add_column(no_wrap=True, justify="right", width=9)
            table.add_column(no_wrap=True, style="cyan", width=room)
        cells = [
            (name, form.format(self.history[key][-1]), sparkline(self.history[key], room)) for key, name, form in shown
        ]
        for first in range(0, len(cells), columns):
            row = cells[first : first + columns]
            table.add_row(*(cell for entry in row for cell in entry))
        return table

    def _below(self) -> list[str]:
        line = self._bar.line()
        failed = f"{self._failed} episodes without a score so far" if self._failed else ""
        return [each for each in (line, failed) if each]


class _Watched(ProgressBar):
    """A stage in the panel."""

    def __init__(self, name: str, total: int, done: int, dashboard: Dashboard) -> None:
        super().__init__(name, total, done, None)
        self.dashboard = dashboard
        self.line: Callable[[], str] = str
        self.alarms: Sequence[Alarm] = ()
        self.last: Mapping[str, float] = {}

    def watch(self, line: Callable[[], str]) -> None:
        """See `ProgressBar.watch`."""
        self.line = line

    def show_alarms(self, alarms: Sequence[Alarm]) -> None:
        """See `ProgressBar.show_alarms`."""
        self.alarms = alarms

    def advance(self, metrics: Mapping[str, float], *, by: int = 1) -> None:
        """See `ProgressBar.advance`."""
        self.done += by
        if metrics:
            self.last = dict(metrics)
            self.dashboard.heard(metrics)

    def clock(self) -> Text:
        """Time that went by, and that is left at this pace."""
        gone = time.monotonic() - self.begun
        left = gone / (self.done - self.first) * (self.total - self.done) if self.done > self.first else None
        said = f"{_clock(gone)}, {_clock(left)} left" if left is not None else _clock(gone)
        return Text(said, style="dim")


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as a line of bars, each as high as it lies between the least and the most; of more values than there
    are places each bar is the mean of its share.

    Args:
        values: One at least where `width` is.
        width: Letters.
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
