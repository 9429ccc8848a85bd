"""Protocols, help texts and the package itself import nothing heavy."""

import subprocess
import sys
from pathlib import Path

import pytest

import whetstone
from whetstone.cli.main import COMMANDS

pytestmark = pytest.mark.structure

ROOT = Path(whetstone.__file__).parent
SEAMS = sorted(
    ".".join(("whetstone", *path.relative_to(ROOT).with_suffix("").parts)) for path in ROOT.rglob("protocol.py")
)
HEAVY = {"torch", "transformers", "peft", "numpy", "pandas", "ray"}
MOST_OWN_MODULES = 32


def loaded_by(code):
    """Return the modules of a new process after this code."""
    words = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules, sep='\\n')"]
    return set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("module", ["whetstone", *SEAMS])
def test_protocol_imports_few_modules_of_the_package_and_nothing_heavy(module):
    modules = loaded_by(f"import {module}")
    assert not modules & HEAVY
    assert sum(name.partition(".")[0] == "whetstone" for name in modules) <= MOST_OWN_MODULES


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["trian"], ["papers"], ["recipes"], ["models"]])
def test_usage_message_imports_nothing_heavy(words):
    call = "from whetstone.cli.main import main\ntry:\n    main()\nexcept SystemExit:\n    pass"
    code = f"import sys\nsys.argv = ['whetstone', *{words}]\n{call}"
    assert not loaded_by(code) & (HEAVY - {"numpy"})


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_imports_nothing_heavy(command):
    call = "from whetstone.cli.main import main\ntry:\n    main()\nexcept SystemExit:\n    pass"
    code = f"import sys\nsys.argv = ['whetstone', {command!r}, '--help']\n{call}"
    assert not loaded_by(code) & (HEAVY - {"numpy"} | {"scipy"})


@pytest.mark.parametrize(
    "words",
    [
        ["doctor"],
        ["train", "demo", "seed=1"],
        ["rollout", "demo"],
        ["compare", "demo", "seed=1,2"],
        ["evaluate", "demo"],
    ],
)
def test_line_is_printed_before_pytorch_is_imported(words, tmp_path):
    # an importer at the end of the search stops the command where PyTorch would be loaded
    code = f"""
import sys
class Stop:
    def find_spec(self, name, path, target=None):
        if name == "torch":
            print("imports torch", file=sys.stderr, flush=True)
            raise SystemExit(0)
sys.argv = ["whetstone", *{words}]
from whetstone.cli.main import main
sys.meta_path.insert(0, Stop())
main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines() == ["whetstone: loading PyTorch", "imports torch"]
