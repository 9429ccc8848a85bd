"""The command in this process: what it printed and its exit code, without the seconds a new interpreter takes."""

import contextlib
import io
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests_small import SMALL
from whetstone import plugins
from whetstone.cli.main import main


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    returncode: int
    stdout: str
    stderr: str


def whetstone(*arguments, cwd=None):
    """Type it, in this folder. A traceback is raised as what it is."""
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
        for name in set(sys.modules) - modules:  # modules of a folder of one test are not those of another's
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(tempfile.gettempdir()):
                del sys.modules[name]
        plugins._searched.clear()
    return Done(code, out.getvalue(), err.getvalue())


def train_with_all_checkpoints(folder):
    """Train the small demo, and keep the checkpoint of every step."""
    keys = ["supervised.checkpoint_interval_steps=1", "supervised.keep_last=9", "reinforcement.keep_last=9"]
    done = whetstone("train", "demo", *SMALL, *keys, "ablations=null", "--run-dir", folder)
    assert done.returncode == 0, done.stderr
    return folder
