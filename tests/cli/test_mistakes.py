"""Mistakes of new users give one line and an exit code, and never a traceback."""

import shlex
from pathlib import Path

import pytest

from mistakes import MISTAKES, last_line, write_files
from support.cli import whetstone

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "mistakes.md"


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_mistake_is_answered_in_one_line(tmp_path, impatient, mistake):
    write_files(mistake, tmp_path)
    done = whetstone(*shlex.split(mistake.command), cwd=tmp_path)  # a traceback would be raised
    line = last_line(done.stderr or done.stdout, tmp_path)
    assert mistake.says in line
    assert done.returncode == mistake.code
    assert len(line) < 700


def test_the_table_has_the_current_commands_and_messages():
    rows = RESULTS.read_text(encoding="utf-8").splitlines()
    for mistake in MISTAKES:
        begins = f"| {mistake.what} | `{mistake.command}` | ".replace("||", "|")
        (row,) = [row for row in rows if row.replace("\\|", "|").startswith(begins)]
        assert mistake.says in row.replace("\\|", "|")
    assert len(rows) == len(MISTAKES) + 4
    assert len(MISTAKES) >= 25
