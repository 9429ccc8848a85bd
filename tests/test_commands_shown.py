"""Every command of the README and of the quick start runs in a clone of this repository.

`SHOWN` lists each command of both pages with the form in which a test runs it, e.g. with fewer steps. A command that is
not in the list fails a test.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import whetstone
from support.small import SMALL

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "guide" / "start.md")
SHOP = [("shop.py", "python", 0), ("shop_loss.py", "python", 1), ("shop.jsonl", "json", 0), ("shop.yaml", "yaml", 0)]
VERL = "algorithm: {adv_estimator: grpo}\nactor_rollout_ref: {rollout: {n: 5}}\n"
TRL = "from trl import GRPOConfig\nargs = GRPOConfig(num_generations=4, max_steps=7)\n"

MAKE = "names a target whose commands `test_make_prints_its_commands` reads"
SHORT = ["ablations=null", *SMALL]
SHOWN = {
    "git clone REPOSITORY whetstone && cd whetstone": "fixture `clone`",
    "make setup": MAKE,
    "make demo": MAKE,
    "make test": MAKE,
    "pip install -e .": "fixture `clone`",
    "whetstone train demo --run-dir runs/demo": SHORT,  # what `make demo` runs
    "whetstone rollout runs/demo -n 2": [],
    "whetstone evaluate runs/demo --json": ["--episodes", "4"],
    "whetstone train demo seed=1 reinforcement.steps=40 --run-dir runs/other": SHORT,
    "whetstone train demo ablations=null --run-dir runs/short": SHORT,
    "whetstone replay runs/demo --updates": [],
    "whetstone why runs/demo": [],
    "whetstone recipes": [],
    "whetstone doctor": [],
    "whetstone doctor demo": SHORT,
    "whetstone models add smollm2-135m": "downloads a model",
    "whetstone train smollm2-tools": "takes half an hour: `python -m benchmarks smollm2_tools`",
    "whetstone train shop.yaml": [],
    "whetstone train shop.yaml objective=shop_loss:clamped --run-dir runs/clamped": [],
    "whetstone train shop.yaml 'objective={name: \"shop_loss:clamped\", limit: 0.3}' --run-dir runs/limit": [],
    "whetstone import verl ppo_trainer.yaml --output from_verl.yaml": [],
    "whetstone import trl train_grpo.py --output from_trl.yaml": [],
    "whetstone view runs/demo": "a server: `test_view_prints_its_address`",
    "whetstone show runs/demo": [],
    "whetstone new tool shop": [],
    "cd shop && ../.venv/bin/python -m pytest && ../.venv/bin/whetstone train recipe.yaml": "tests/cli/test_new.py",
}
RUN = {command: more for command, more in SHOWN.items() if isinstance(more, list)}


def commands():
    """Return command lines of console blocks, without comments and without the folder of the program."""
    blocks = [block for page in PAGES for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)]
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [re.sub(r"\s+#.*", "", line).removeprefix(".venv/bin/") for line in lines]


def block(language, number=0):
    return re.findall(rf"```{language}\n(.*?)```", PAGES[0].read_text(), re.DOTALL)[number]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Copy the tracked files of this repository and the files that the README shows into a folder."""
    folder = tmp_path_factory.mktemp("bare") / "whetstone"
    if shutil.which("git") and (ROOT / ".git").exists():
        subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True, capture_output=True)
    else:
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "runs", "build", "dist"))
    for name, language, number in SHOP:
        (folder / name).write_text(block(language, number))
    (folder / "ppo_trainer.yaml").write_text(VERL)
    (folder / "train_grpo.py").write_text(TRL)
    return folder


def test_every_command_of_both_pages_is_run():
    assert set(commands()) - set(SHOWN) == set()
    assert set(SHOWN) - set(commands()) == {"whetstone train demo --run-dir runs/demo"}


@pytest.mark.parametrize("target", ["setup", "demo", "test"])
def test_make_prints_its_commands(clone, target):
    if shutil.which("make") is None:
        pytest.skip("make is not installed: apt-get install make")
    done = subprocess.run(["make", "-n", target], cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "requirements/install.py" in done.stdout
    if target == "demo":
        assert ".venv/bin/whetstone train demo --run-dir runs/demo" in done.stdout


@pytest.mark.slow
def test_every_command_runs_in_order(clone):
    for command, more in RUN.items():
        done = whetstone(*shlex.split(command)[1:], *more, cwd=clone)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    for name in ("from_verl.yaml", "from_trl.yaml", "runs/demo/report.html", "shop/recipe.yaml"):
        assert (clone / name).is_file(), name


@pytest.mark.slow
def test_view_prints_its_address(clone):
    whetstone("train", "shop.yaml", "--run-dir", "runs/seen", cwd=clone)
    words = [sys.executable, "-m", "whetstone.cli.main", "view", "runs/seen", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(words, cwd=clone, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith("1 run at http://127.0.0.1:")
    finally:
        process.kill()
        process.wait()
