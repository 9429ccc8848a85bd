"""`make setup`: bad machines end with one line and exit code 2, and an interrupted installation continues."""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "requirements" / "install.py"
needs_make = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed: apt-get install make")


@pytest.fixture
def setup():
    """The installer as a module."""
    spec = importlib.util.spec_from_file_location("requirements_install", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def script(path, text):
    """Write an executable shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def run_make(*arguments, **environment):
    """Run make in the checkout; return its exit code, output and the standard error without the lines of make."""
    clean = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "TORCH")}
    finished = subprocess.run(
        ["make", "--no-print-directory", *map(str, arguments)],
        cwd=ROOT,
        env={**clean, **environment},
        capture_output=True,
        text=True,
    )
    return (
        finished.returncode,
        finished.stdout,
        [line for line in finished.stderr.splitlines() if "make: ***" not in line],
    )


@needs_make
def test_old_python_is_refused_in_one_line(tmp_path):
    old = script(tmp_path / "python3", '[ "$1" = -V ] && echo Python 3.10.13; exit 1')
    code, _, errors = run_make("setup", f"PYTHON={old}", f"VENV={tmp_path / 'environment'}")
    assert (code, len(errors)) == (2, 1)
    assert "needs Python 3.11 or newer" in errors[0]
    assert "is Python 3.10.13; name another one: make setup PYTHON=" in errors[0]


@needs_make
def test_missing_python_is_refused_in_one_line(tmp_path):
    code, _, errors = run_make("setup", "PYTHON=no-such-python", f"VENV={tmp_path / 'environment'}")
    assert (code, len(errors)) == (2, 1)
    assert "apt-get install python3 python3-venv" in errors[0]


@needs_make
def test_missing_venv_module_is_refused_in_one_line(tmp_path):
    (tmp_path / "ensurepip.py").write_text("raise ImportError")
    code, _, errors = run_make(
        "setup", f"PYTHON={sys.executable}", f"VENV={tmp_path / 'environment'}", PYTHONPATH=str(tmp_path)
    )
    assert (code, len(errors)) == (2, 1)
    assert "has no venv module; apt-get install python3." in errors[0]
    assert not (tmp_path / "environment").exists()


@needs_make
def test_folder_that_is_no_environment_is_left_alone(tmp_path):
    precious = tmp_path / "folder" / "precious.txt"
    precious.parent.mkdir()
    precious.write_text("kept")
    code, _, errors = run_make("setup", f"PYTHON={sys.executable}", f"VENV={precious.parent}")
    assert (code, len(errors)) == (2, 1)
    assert "is not a virtual environment; choose another place with VENV=" in errors[0]
    assert precious.read_text() == "kept"


@pytest.mark.parametrize(
    ("output", "remedy"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "free 3 GiB"),
        ("OSError: [Errno 30] Read-only file system: '/x'", "choose another place: make setup VENV="),
        ("WARNING: Retrying ... NewConnectionError('<...>: Failed to establish')", "connect to the network"),
        ("[Errno -3] Temporary failure in name resolution\nERROR: No matching distribution", "connect to the network"),
        ("ERROR: No matching distribution found for torch==9", "no torch==9 for this Python and platform"),
        ("error: command 'gcc' failed: No such file or directory", "apt-get install build-essential python3-dev"),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n    six==1.17.0 from x:\n",
            "a download of six differs from its hash",
        ),
    ],
)
def test_causes_are_named_with_a_remedy_in_one_line(setup, tmp_path, output, remedy):
    explained = setup.explain(output, tmp_path)
    assert remedy in explained
    assert "\n" not in explained


def test_unknown_failure_shows_the_last_lines_and_names_the_log(setup, tmp_path):
    command = [sys.executable, "-c", "print('something odd'); raise SystemExit(1)"]
    with pytest.raises(setup.SetupError, match="something odd") as caught:
        setup.run(command, setup.Progress("test"), tmp_path, None, lambda line: None)
    assert str(tmp_path / "setup.log") in str(caught.value)
    assert "something odd" in (tmp_path / "setup.log").read_text()


def test_partially_unpacked_packages_are_installed_again(setup, tmp_path):
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, files in {
        "whole-1.dist-info": ["METADATA", "RECORD"],
        "part-1.dist-info": ["METADATA"],
        "~old": [],
    }.items():
        (packages / name).mkdir(parents=True)
        for file in files:
            (packages / name / file).touch()
    setup.remove_partial(tmp_path)
    assert [path.name for path in packages.iterdir()] == ["whole-1.dist-info"]


def test_installed_set_is_not_installed_again(setup, tmp_path, capsys):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    files = [SCRIPT.parent / "worlds.txt"]
    (tmp_path / ".ready-worlds").write_text(setup.fingerprint(files, ""))
    setup.set_up("worlds", tmp_path, "torch")
    assert capsys.readouterr().out == ""


def test_other_torch_is_installed_into_a_ready_environment(setup):
    files = [SCRIPT.parent / "base.txt"]
    assert setup.fingerprint(files, "torch==2.13.0") != setup.fingerprint(files, "torch==2.12.0")


def test_second_setup_waits_for_the_first(setup, capsys):
    order = []
    with open(SCRIPT) as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def second():
            with setup.locked():
                order.append("second")

        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.5)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert "another `make setup` is at work here" in capsys.readouterr().out


def test_progress_without_a_terminal_is_one_line_per_step(setup, capsys):
    for title in ("setup: one", "setup: two"):
        with setup.Progress(title):
            pass
    assert capsys.readouterr().out == "setup: one ...\nsetup: two ...\n"


def test_progress_counts_packages(setup, tmp_path, monkeypatch):
    details = []
    lines = [
        "Collecting six==1.17.0",
        "Requirement already satisfied: rich==15.0.0 in x",
        "Installing collected packages: six",
    ]
    progress = setup.Progress("test")

    def run(command, progress, venv, lock, read):
        assert "--require-hashes" in command
        for line in lines:
            read(line)
            details.append(progress.detail)

    monkeypatch.setattr(setup, "run", run)
    setup.install(progress, tmp_path, None, 2, ["--require-hashes"])
    assert details == ["1 of 2, six", "2 of 2, rich", "unpacking 2 packages"]
