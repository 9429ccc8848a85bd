"""Run the command in this process and return its output and exit code, without the start of a new interpreter."""

import contextlib
import io
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from support.small import SMALL
from whetstone import plugins
from whetstone.cli.main import main


@dataclass(frozen=True)
class Done:
    """Result of a command."""

    returncode: int
    stdout: str
    stderr: str


def whetstone(*arguments, cwd=None):
    """Run a command in this folder. A traceback is raised."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    before, modules, path, argv = Path.cwd(), set(sys.modules), list(sys.path), sys.argv
    os.chdir(cwd or before)
    sys.argv = ["whetstone", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        os.chdir(before)
        sys.argv, sys.path[:] = argv, path
        for name in set(sys.modules) - modules:  # modules of the folder of one test are not those of another
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(tempfile.gettempdir()):
                del sys.modules[name]
        plugins._searched.clear()
    return Done(code, out.getvalue(), err.getvalue())


def train_with_all_checkpoints(folder):
    """Train the small demo and keep the checkpoint of every step."""
    keys = ["supervised.checkpoint_interval_steps=1", "supervised.keep_last=9", "reinforcement.keep_last=9"]
    done = whetstone("train", "demo", *SMALL, *keys, "ablations=null", "--run-dir", folder)
    assert done.returncode == 0, done.stderr
    return folder
