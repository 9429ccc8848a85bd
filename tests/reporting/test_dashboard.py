"""The dashboard of a run in a terminal of any width, and plain lines without a terminal."""

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from rich.console import Console

from support.cli import whetstone
from support.small import SMALL
from whetstone.reporting import Dashboard
from whetstone.reporting.alarms import find_alarms
from whetstone.reporting.dashboard import format_sparkline

ODD = "\x1b]0;owned\x07\x1b[2Jgone\x9b31m"


def panel(metrics, *, width=100, steps=8, total=20, line=""):
    """Return the text of the dashboard after these steps."""
    dashboard, written = Dashboard("runs/shop"), io.StringIO()
    dashboard.console = Console(file=written, width=width, force_terminal=True, color_system=None)
    with dashboard.stage("reinforcement", total) as stage:
        stage.watch(lambda: line)
        for step in range(1, steps + 1):
            stage.advance({name: of(step) for name, of in metrics.items()})
        alone = io.StringIO()
        dashboard.console = Console(file=alone, width=width, force_terminal=True, color_system=None)
        dashboard.console.print(dashboard.render_panel())
        return alone.getvalue()


def test_sparkline_has_the_minimum_at_the_bottom_and_the_maximum_at_the_top():
    assert format_sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert format_sparkline([5, 5, 5], 8) == "▁▁▁"
    assert format_sparkline([1, 3, 5, 7], 2) == "▁█"  # means 2 and 6
    assert format_sparkline([1.0], 0) == ""
    assert len(format_sparkline(list(range(1000)), 30)) == 30


def test_dashboard_shows_progress_and_metrics():
    text = panel(
        {"reward/mean": lambda k: k / 10, "episode/success": lambda k: k / 16, "policy/reference_kl": lambda k: 0.004}
    )
    assert "runs/shop" in text
    assert "reinforcement 8/20" in text
    assert " left" in text
    assert re.search(r"reward +0\.80 +▁▂▃▄▅▆▇█", text)
    assert re.search(r"success +50%", text)
    assert re.search(r"kl +0\.0040", text)
    assert "entropy" not in text  # not measured


@pytest.mark.parametrize("width", [20, 40, 60, 76, 120, 300])
def test_no_line_is_longer_than_the_terminal(width):
    text = panel({"reward/mean": lambda k: k, "throughput/tokens_per_second": lambda k: 123456.0}, width=width)
    assert max(len(line) for line in text.splitlines()) <= width


def test_text_of_models_and_tools_is_escaped():
    text = panel({"reward/mean": lambda k: 1.0}, line=f"waits for {ODD}")
    assert "waits for gone" in text
    assert not set(text) & set("\x1b\x07\x9b")
    dashboard, written = Dashboard("shop"), io.StringIO()
    dashboard.console = Console(file=written, width=80, force_terminal=True, color_system=None)
    dashboard.say(f"step 1: 2 episodes have no score: {ODD}")
    assert "no score: gone" in written.getvalue()
    assert not set(written.getvalue()) & set("\x1b\x07\x9b")


def test_dashboard_shows_the_current_alarms():
    row = {"stage": "reinforcement", "step": 1, "sampler/mismatch_kl": 0.5}
    dashboard, written = Dashboard("runs/shop"), io.StringIO()
    dashboard.console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    with dashboard.stage("reinforcement", 20) as bar:
        bar.advance({"sampler/mismatch_kl": 0.5})
        bar.show_alarms(find_alarms([row]))
        dashboard.console = Console(file=written, width=200, force_terminal=True, color_system=None)
        dashboard.console.print(dashboard.render_panel())
        assert "! sampler mismatch" in written.getvalue()
        bar.show_alarms([])
        dashboard.console.print(dashboard.render_panel())
    assert written.getvalue().count("! sampler mismatch") == 1


def test_nan_is_left_out():
    text = panel({"reward/mean": lambda k: float("nan"), "policy/entropy": lambda k: 1.5})
    assert "reward" not in text
    assert "1.50" in text


class Terminal:
    """The command in a terminal of this size."""

    def __init__(self, folder, *options, environment=None, steps=400, width=90):
        changes = [each for each in SMALL if not each.startswith("reinforcement.steps")]
        words = [sys.executable, "-m", "whetstone.cli.main", "train", "demo", *changes, "supervised=null"]
        words += ["ablations=null", f"reinforcement.steps={steps}", "--run-dir", str(folder), *options]
        master, slave = pty.openpty()
        self.resize(slave, width)
        variables = {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1", **(environment or {})}
        sizes = ("COLUMNS", "LINES")  # if these are set, a terminal's own size is not asked for
        variables = {name: value for name, value in variables.items() if value is not None and name not in sizes}
        self.process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, env=variables)
        os.close(slave)
        self.ours, self.seen = master, ""

    def resize(self, file, width):
        fcntl.ioctl(file, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))

    def until(self, text, seconds=120):
        """Read until this text appears or the command ends."""
        end = time.monotonic() + seconds
        while text not in self.seen and time.monotonic() < end:
            if not select.select([self.ours], [], [], 0.2)[0]:
                continue
            try:
                self.seen += os.read(self.ours, 65536).decode(errors="replace")
            except OSError:  # no process has it open
                break
        return self.seen

    def end(self):
        self.until("\0", seconds=400)  # until no process has it open: closing it earlier would end the command
        os.close(self.ours)
        return self.process.wait(60)


@pytest.mark.slow
def test_terminal_is_drawn_resized_and_restored_after_ctrl_c(tmp_path):
    terminal = Terminal(tmp_path / "run")
    assert "entropy" in terminal.until("entropy")
    terminal.resize(terminal.ours, 50)
    terminal.process.send_signal(signal.SIGWINCH)
    terminal.until("\0", seconds=3)  # all output until then
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.seen).splitlines()
    framed = [line.strip() for line in lines if re.fullmatch(r"\s*│.*│\s*", line)]
    assert len(framed[0]) == 90
    assert len(framed[-1]) == 50
    terminal.process.send_signal(signal.SIGINT)  # as the terminal does at Ctrl-C
    assert terminal.end() == 130
    assert "\x1b[?25h" in terminal.seen  # the cursor is visible again
    assert "--resume" in terminal.seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "environment"), [(["--plain"], {}), ([], {"NO_COLOR": "1"}), ([], {"TERM": "dumb"})]
)
def test_plain_progress_has_no_escape_sequences(tmp_path, options, environment):
    terminal = Terminal(tmp_path / "run", *options, environment=environment, steps=2)
    assert terminal.end() == 0
    assert "reinforcement 2/2" in terminal.seen
    assert "\x1b[" not in terminal.seen
    assert "╭" not in terminal.seen


def test_output_without_a_terminal_is_lines(tmp_path):
    done = whetstone("train", "demo", *SMALL, "ablations=null", "--run-dir", tmp_path / "run")
    assert done.returncode == 0
    assert "reinforcement 2/2" in done.stderr
    assert "\x1b" not in done.stderr + done.stdout
