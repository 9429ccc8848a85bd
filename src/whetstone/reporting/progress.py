"""Progress of a run: a bar with rate and time left, or plain lines without a terminal.

Note:
    A bar in a log file would be thousands of lines of escape sequences. Without a terminal, one line is printed every
    few seconds.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.text import Text

from whetstone.masking import mask_message
from whetstone.reporting.alarms import Alarm

_SECONDS_BETWEEN_LINES = 10.0
_SHOWN = {
    "loss/total": "loss {:.3f}",
    "reward/mean": "reward {:.2f}",
    "episode/success": "success {:.0%}",
    "episode/invalid": "{:.0f} failed",
    "episode/turns": "turns {:.1f}",
    "policy/entropy": "entropy {:.2f}",
    "policy/reference_kl": "kl {:.4f}",
    "policy/update_kl": "update kl {:.4f}",
    "sampler/mismatch_kl": "mismatch {:.1e}",
    "throughput/tokens_per_second": "{:,.0f} tok/s",
}


class _LiveColumn(ProgressColumn):
    """Column with the current activity; called by the thread that renders."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["line"](), style="dim cyan")


class ProgressBar:
    """Progress of one stage with a known number of steps. Created by `Progress.stage`."""

    def __init__(
        self,
        name: str,
        total: int,
        done: int,
        bar: Bar | None,
        write: Callable[[Callable[[], None]], None] = lambda line: line(),
    ) -> None:
        self._write = write
        self.name, self.total, self.done, self._bar = name, total, done, bar
        self.begun, self.first, self._last_line = time.monotonic(), done, 0.0
        self._task = bar.add_task(name, total=total, completed=done, text="", line=str) if bar is not None else None

    def watch(self, line: Callable[[], str]) -> None:
        """Show the result of `line` at every refresh, until the next step is done."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, line=line)

    def show_alarms(self, alarms: Sequence[Alarm]) -> None:
        """Do nothing: a bar has no space for alarms, which the dashboard shows."""

    def advance(self, metrics: Mapping[str, float], *, by: int = 1) -> None:
        """Advance by `by` steps and show their metrics."""
        self.done += by
        text = format_step(metrics)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done, text=text)
            return
        now = time.monotonic()
        if now - self._last_line >= _SECONDS_BETWEEN_LINES or self.done >= self.total:
            self._last_line = now
            left = (now - self.begun) / max(1, self.done - self.first) * (self.total - self.done)
            line = f"{self.name} {self.done}/{self.total}  {text}  {left:.0f} s left"
            self._write(lambda: print(line, file=sys.stderr, flush=True))


def format_step(metrics: Mapping[str, float]) -> str:
    """Format the most important metrics of a step in one line."""
    known = {key: metrics[key] for key in _SHOWN if math.isfinite(metrics.get(key, math.nan))}
    if not known.get("episode/invalid"):  # shown only if there is one
        known.pop("episode/invalid", None)
    return "  ".join(_SHOWN[key].format(value) for key, value in known.items())


class Progress:
    """Shows the progress of all stages on standard error, so that results on standard output can be piped.

    A notebook shows it below the cell, as a bar if ipywidgets is installed.

    Args:
        quiet: Print nothing.
        plain_lines: Print lines even in a terminal.
    """

    def __init__(self, *, quiet: bool = False, plain_lines: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self.quiet, self.plain_lines = quiet, plain_lines
        self.is_lost = False
        """Whether standard error can no longer be written: its pipe is closed, or a disk is full."""
        self._printed: set[str] = set()
        """Lines between stages that were printed."""

    @contextmanager
    def stage(self, name: str, total: int, *, done: int = 0) -> Iterator[ProgressBar]:
        """Show a stage within the block.

        Args:
            name: Name of the stage.
            total: Number of steps.
            done: Number of steps that were made before a resume.

        Yields:
            Progress of the stage, to advance by each step.
        """
        terminal = self.console.is_terminal and not self.console.is_dumb_terminal and not self.plain_lines
        redrawn = terminal or (self.console.is_jupyter and find_spec("ipywidgets") is not None)
        if self.quiet or not redrawn:
            stage = ProgressBar(name, total, done, None, self.write)
            if self.quiet:
                stage.advance = lambda metrics, *, by=1: None  # type: ignore[method-assign]
            yield stage
            return
        columns = (
            TextColumn("{task.description:<14}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[text]}"),
            _LiveColumn(),
        )
        with Bar(*columns, console=self.console) as bar:
            yield ProgressBar(name, total, done, bar)

    def say(self, text: str) -> None:
        """Print a line that remains visible, above the bar of the current stage."""
        self._printed.add(text)
        self.write(lambda: self.console.print(mask_message(text), highlight=False, markup=False, soft_wrap=True))

    def is_on_output(self, text: str) -> bool:
        """Return whether `say` printed a line to the same terminal or file as standard output.

        A caller can then skip printing the line again.
        """
        return text in self._printed and not self.quiet and not self.is_lost and _is_one_file(sys.stdout, sys.stderr)

    def write(self, line: Callable[[], None]) -> None:
        """Call a function that writes to standard error; after an output error, skip all further calls."""
        if self.is_lost:
            return
        try:
            line()
        except (OSError, SystemExit):  # rich exits after a broken pipe
            self.is_lost = True


def _is_one_file(*streams: TextIO) -> bool:
    """Return whether all streams write to the same terminal, pipe or file."""
    try:
        places = {(about.st_dev, about.st_ino) for about in (os.fstat(stream.fileno()) for stream in streams)}
    except (OSError, ValueError, AttributeError):  # closed, or no file, as in a notebook
        return False
    return len(places) == 1
