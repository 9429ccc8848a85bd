"""Every example runs, with a model of a few thousand parameters and two steps per stage."""

import asyncio
import functools
import importlib.util
import sys
from pathlib import Path

import pytest

from whetstone.chat import tool_result
from whetstone.tools import Toolset

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = {
    "policy": {"tiny": {"hidden_size": 16, "num_heads": 2, "num_layers": 1, "intermediate_size": 16}},
    "supervised": {"steps": 2, "batch_size": 4},
    "rollout": {"group_size": 2, "max_new_tokens": 4},
    "reinforcement": {"steps": 2, "tasks_per_step": 2},
    "evaluation": {"episodes": 4},
}


NEEDS = {"langgraph_agent": "langgraph langchain-openai", "agents_sdk_agent": "openai-agents"}
"""What brings the library an example is written with."""


@pytest.fixture
def example(request, monkeypatch):
    """Load the module of an example; skip if its library is not installed."""
    name = request.param
    monkeypatch.syspath_prepend(EXAMPLES)
    for brings in NEEDS.get(name, "").split():
        module = {"openai-agents": "agents"}.get(brings, brings.replace("-", "_"))
        pytest.importorskip(module, reason=f"pip install {NEEDS[name]}")
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
@pytest.mark.parametrize("example", ["own_agent", "langgraph_agent", "agents_sdk_agent"], indirect=True)
def test_agent_with_only_an_address_trains(example, tmp_path):
    run = example.main(str(tmp_path / "run"), **SMALL)
    assert run.after.episodes == 4


@pytest.mark.slow
@pytest.mark.parametrize("example", ["verifiers_agent"], indirect=True)
def test_environment_of_verifiers_trains_with_its_own_harness(example, tmp_path):
    python = EXAMPLES.parent / "servers" / "verifiers" / "bin" / "python"
    if not python.exists():
        pytest.skip("python -m venv servers/verifiers && servers/verifiers/bin/pip install verifiers")
    run = example.main(str(python), str(tmp_path / "run"), **SMALL)
    assert (run.after.episodes, run.failed_episodes) == (4, 0)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["own_advantage"], indirect=True)
def test_idea_is_compared_with_a_baseline(example, tmp_path):
    runs = example.main(str(tmp_path), **SMALL)
    assert runs["by_rank"].written["method"]["advantage"] == "own_advantage:by_rank"
    assert runs["by_rank"].before.to_json() == runs["group_relative"].before.to_json()


@pytest.mark.parametrize("example", ["the_whole_loop"], indirect=True)
def test_complete_loop_trains(example):
    means = asyncio.run(example.main(12))
    assert sum(means[-3:]) > sum(means[:3]) + 0.3


@pytest.mark.parametrize("example", ["order_database"], indirect=True)
def test_tools_on_a_copy_of_a_database_succeed_and_change_no_row_of_it(example, tmp_path, capsys):
    database = tmp_path / "shop.sqlite"
    example.create_database(database)
    tasks = [example.Refunds().task(index) for index in range(4)]
    toolset = Toolset([functools.partial(example.Orders, path=str(database))])

    async def play(task):
        await toolset.open(task, seed=0)
        conversation = []
        while calls := example.Refunds().demonstrate(task, conversation, ()).tool_calls:
            conversation.append(tool_result((await toolset.call(calls[0])).text))
        return await toolset.verdict()

    before = database.read_bytes()
    with asyncio.Runner() as runner:
        assert [runner.run(play(task))["success"] for task in tasks] == [True] * 4
        runner.run(toolset.close())
    assert database.read_bytes() == before
    example.main(str(tmp_path / "run"), **SMALL)
    assert "0 orders of the shop refunded" in capsys.readouterr().out
