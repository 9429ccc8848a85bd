"""From the command to the gradient: the functions of a training step, compared with the list of the documentation.

The list is in `docs/guide/architecture.md`. A run of one step is stopped in its first backward pass. The frames of
three places make the path: the thread of the caller, the coroutines of the event loop, and the compute thread.
"""

import asyncio
import re
import sys
import threading
from pathlib import Path

import pytest
import torch

from support.small import SMALL
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train
from whetstone.training.single_run import SingleRun

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guide" / "architecture.md"
SOURCE = ROOT / "src" / "whetstone"
MAX_FRAMES = 10
BETWEEN_THREADS = {"compute_thread.py", "own_loop.py", "training/interruption.py"}
"""Modules whose functions only pass a call to another thread or task."""


def listed_path():
    """Return (file, function) of each step of the numbered list under the heading "From the command to the
    gradient"."""
    text = PAGE.read_text()
    section = text.partition("## From the command to the gradient\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", section, flags=re.MULTILINE)


def place_of(code):
    """Return the file and the name of a function of Whetstone, or None for other code and for wrappers."""
    path = Path(code.co_filename)
    if SOURCE not in path.parents or "<lambda>" in code.co_qualname or "<locals>" in code.co_qualname:
        return None
    file = str(path.relative_to(SOURCE))
    return None if file in BETWEEN_THREADS else (file, code.co_qualname)


def stack_of(frame):
    """Return the code of a frame and its callers, the outermost first."""
    codes = []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return codes[::-1]


def coroutines_of(task):
    """Return the code of the coroutines that wait for each other in a task, the outermost first."""
    codes, waiting = [], task.get_coro()
    while hasattr(waiting, "cr_frame") and waiting.cr_frame is not None:
        codes.append(waiting.cr_code)
        waiting = waiting.cr_await
    return codes


@pytest.mark.slow
def test_the_first_gradient_is_reached_by_the_listed_functions(tmp_path, monkeypatch):
    caller, loops, paths = threading.get_ident(), [], []
    play, backward = SingleRun.run, torch.Tensor.backward

    async def recorded_play(self):
        loops.append(asyncio.get_running_loop())
        return await play(self)

    def recorded_backward(self, *arguments, **options):
        if not paths:
            tasks = [coroutines_of(task) for task in asyncio.all_tasks(loops[0])]
            names = [[place_of(code) for code in codes] for codes in tasks]
            # `unless_asked` runs the step as a separate task
            stage = next(task for task in names if ("training/single_run.py", "SingleRun.run") in task)
            step = next(task for task in names if ("training/reinforcement.py", "Reinforcement.step") in task)
            outer = [place_of(code) for code in stack_of(sys._current_frames()[caller])]
            inner = [place_of(code) for code in stack_of(sys._getframe(1))]
            paths.append([place for place in (*outer, *stage, *step, *inner) if place is not None])
        return backward(self, *arguments, **options)

    monkeypatch.setattr(SingleRun, "run", recorded_play)
    monkeypatch.setattr(torch.Tensor, "backward", recorded_backward)
    small = ["supervised=null", "ablations=null", "reinforcement.steps=1", "reinforcement.measure_noise_scale=false"]
    recipe = load_recipe("demo", [*SMALL, *small, "reward=support.small:alternating"])
    train(recipe, tmp_path / "run", progress=Progress(quiet=True))
    assert paths[0] == listed_path()


def test_the_path_from_the_command_to_the_gradient_is_short():
    assert 0 < len(listed_path()) <= MAX_FRAMES


def test_listed_functions_and_files_exist():
    for file, function in listed_path():
        assert f"def {function.rpartition('.')[2]}(" in (SOURCE / file).read_text()
    sections = {
        heading: re.findall(r"^- `([\w/]+\.py)`", section, flags=re.MULTILINE)
        for heading, section in re.findall(
            r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
        )
    }
    bounds = {"Sample a group": 10, "From advantages to the loss": 9, "Resume a run": 8, "Weights to the engine": 5}
    for heading, bound in bounds.items():
        assert 0 < len(sections[heading]) <= bound, heading
        assert all((SOURCE / file).is_file() for file in sections[heading])
