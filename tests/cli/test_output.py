"""Output that cannot be written ends a command with one line; a run is saved and resumes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.small import SMALL

FULL = Path("/dev/full")
LINE = "whetstone: the output cannot be written: No space left on device"
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full: a device of Linux")


def run_command(*words, folder, **streams):
    """Run a command in a process; return its exit code and its standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "whetstone.cli.main", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        text=True,
        **{"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, **streams},
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", ["--help", "--version", "recipes", "recipes --json", "papers", "train --help"])
def test_full_standard_output_is_one_line(words, tmp_path):
    with FULL.open("w") as full:
        assert run_command(*words.split(), folder=tmp_path, stdout=full) == (2, f"{LINE}\n")


@pytest.mark.parametrize("error", ["MemoryError()", 'RuntimeError("can\'t allocate memory: you tried")'])
def test_failed_allocation_is_one_line(error):
    code = f"""
import sys
from whetstone.cli import recipes
from whetstone.cli.main import main
def fail(*arguments):
    raise {error}
recipes.load_recipe = recipes.built_in_recipes = fail
sys.argv = ["whetstone", "recipes"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("whetstone: out of memory (")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_run_with_full_standard_output_is_complete(options, tmp_path):
    with FULL.open("w") as full:
        code, errors = run_command("train", "demo", *SMALL, "--run-dir", "run", *options, folder=tmp_path, stdout=full)
    assert (code, errors.splitlines()[-1]) == (2, f"{LINE}; run is complete")
    assert (tmp_path / "run" / "summary.json").is_file()


@pytest.mark.slow
def test_run_with_full_standard_error_is_saved_and_resumes(tmp_path):
    words = ["train", "demo", *SMALL, "supervised.steps=3", "--run-dir", "run"]
    with FULL.open("w") as full:
        code, _ = run_command(*words, folder=tmp_path, stderr=full)
    assert code == 128 + signal.SIGHUP
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    assert not (tmp_path / "run" / "summary.json").exists()
    code, errors = run_command(*words, "--resume", folder=tmp_path)
    assert code == 0
    assert "resuming from step" in errors
