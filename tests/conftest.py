"""What many tests need: the real data where it is at hand, small policies, and a run in miniature."""

from pathlib import Path

import pytest
import torch

from whetstone.recipe import load_recipe
from whetstone.training import assemble

torch.set_num_threads(1)  # tests run two at a time, one core each

SMALL = [
    "policy.tiny.hidden=16",
    "policy.tiny.heads=2",
    "policy.tiny.layers=1",
    "policy.tiny.intermediate=16",
    "supervised.steps=2",
    "supervised.batch_size=4",
    "training.steps=2",
    "training.tasks_per_step=2",
    "rollout.group_size=2",
    "rollout.max_new_tokens=6",
    "evaluation.episodes=4",
]


@pytest.fixture(scope="session")
def gsm8k_folder():
    """The published GSM8K files."""
    folder = Path(__file__).parents[2] / "shared" / "data" / "gsm8k"
    if not (folder / "train.jsonl").is_file():
        pytest.skip(f"GSM8K is not there: put train.jsonl and test.jsonl into {folder}")
    return folder


@pytest.fixture
def small_demo():
    """The demo recipe with a model of a few thousand parameters and two steps a stage; overrides may be added."""

    def made(*overrides):
        return load_recipe("demo", [*SMALL, "ablations=null", *overrides])

    return made


@pytest.fixture
def assembly(small_demo):
    """All parts of the small demo."""
    return assemble(small_demo())
