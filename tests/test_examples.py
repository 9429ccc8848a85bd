"""Every example runs, on a model of a few thousand parameters and two steps a stage."""

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = {
    "policy": {"tiny": {"hidden": 16, "heads": 2, "layers": 1, "intermediate": 16}},
    "supervised": {"steps": 2, "batch_size": 4},
    "rollout": {"group_size": 2, "max_new_tokens": 4},
    "reinforcement": {"steps": 2, "tasks_per_step": 2},
    "evaluation": {"episodes": 4},
}


@pytest.fixture
def example(request, monkeypatch):
    """The module of an example."""
    name = request.param
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("example", ["train_calculator", "own_reward", "own_environment"], indirect=True)
def test_an_example_trains(example, tmp_path, capsys):
    run = example.main(str(tmp_path / "run"), **SMALL)
    assert run.after.episodes == 4
    assert (tmp_path / "run" / "report.html").is_file()
    assert capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("example", ["own_agent"], indirect=True)
def test_an_agent_that_knows_an_address_trains(example, tmp_path):
    run = example.main(str(tmp_path / "run"), **SMALL)
    assert run.after.episodes == 4


@pytest.mark.parametrize("example", ["own_advantage"], indirect=True)
def test_an_idea_is_tried_against_a_baseline(example, tmp_path):
    runs = example.main(str(tmp_path), **SMALL)
    assert runs["by_rank"].written["method"]["advantage"] == "own_advantage:by_rank"
    assert runs["by_rank"].before.to_json() == runs["group_relative"].before.to_json()


@pytest.mark.parametrize("example", ["the_whole_loop"], indirect=True)
def test_the_whole_loop_learns(example):
    means = asyncio.run(example.main(12))
    assert sum(means[-3:]) > sum(means[:3]) + 0.3
