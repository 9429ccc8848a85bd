"""The example of each primitive trains as described, and the page of the interface shows all of them."""

import importlib
import re
from pathlib import Path

import pytest

from support.small import SMALL, TEACHING
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress, read_trajectories
from whetstone.training import train

EXAMPLES = Path(__file__).parents[1] / "examples"
KEYS = dict(re.findall(r"^# ([a-z ]+): (\S+=.+)$", (EXAMPLES / "primitives.py").read_text(), re.MULTILINE))
SMALLEST = [*SMALL, "ablations=null", TEACHING, "reinforcement.steps=1", "evaluation.episodes=2"]


@pytest.fixture(autouse=True)
def primitives(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("primitives")


def trained(folder, *keys):
    train(load_recipe("demo", [*SMALLEST, *keys]), folder, progress=Progress(quiet=True))
    return [row for path in sorted((folder / "trajectories").glob("step-*")) for row in read_trajectories(path)]


def test_number_of_primitives():
    assert len(KEYS) == 13


def test_compatible_primitives_train_together(tmp_path):
    together = [key for name, key in KEYS.items() if name not in ("fork", "context rewrite", "replay")]
    rows = trained(tmp_path / "run", *together)
    assert all(row.opening[-1].text.startswith("Please ") for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", KEYS)
def test_each_primitive_trains_by_its_key(tmp_path, name):
    assert trained(tmp_path / "run", KEYS[name])
