"""A seam, a command's help and the package itself load nothing heavy."""

import subprocess
import sys
from pathlib import Path

import pytest

import whetstone

ROOT = Path(whetstone.__file__).parent
SEAMS = sorted(
    ".".join(("whetstone", *path.relative_to(ROOT).with_suffix("").parts)) for path in ROOT.rglob("protocol.py")
)
HEAVY = {"torch", "transformers", "peft", "numpy", "pandas", "ray"}
MOST_OWN_MODULES = 30


def loaded_by(code):
    """The modules a fresh process holds after it."""
    words = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules, sep='\\n')"]
    return set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("module", ["whetstone", *SEAMS])
def test_a_seam_loads_few_modules_of_ours_and_nothing_heavy(module):
    modules = loaded_by(f"import {module}")
    assert not modules & HEAVY
    assert sum(name.partition(".")[0] == "whetstone" for name in modules) <= MOST_OWN_MODULES


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["trian"]])
def test_what_says_how_it_is_used_loads_nothing_heavy(words):
    call = "from whetstone.cli.main import main\ntry:\n    main()\nexcept SystemExit:\n    pass"
    code = f"import sys\nsys.argv = ['whetstone', *{words}]\n{call}"
    assert not loaded_by(code) & HEAVY
