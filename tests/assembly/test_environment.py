"""Tools of an environment before an episode starts, and options of functions."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from whetstone.assembly import assemble
from whetstone.assembly.stage_datasets import read_demonstrations
from whetstone.chat import ToolCall
from whetstone.plugins import OptionError, bind_component
from whetstone.recipe import DataSettings, load_recipe
from whetstone.tools import TOOLS, Toolset
from whetstone.tools.side_effects import effects

SERVER = [sys.executable, "-m", "whetstone.cli.main", "mcp", "calculator"]


@effects("read")
def find_order(number: int, *, api_key: str = "", shop: int = 0) -> str:
    """Find an order.

    Args:
        number: Number of the order.
        api_key: Key of the backend.
        shop: Number of the shop.
    """
    return f"{number} of {shop} with {api_key}"


def with_tools(tools):
    return load_recipe("demo", ["ablations=null", f"environment.tools={json.dumps(tools)}"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tools", "names"),
    [
        ([{"name": "mcp", "command": SERVER}], ["calculator"]),
        (["notes", {"name": "mcp", "command": SERVER}], ["write_note", "read_notes", "delete_note", "calculator"]),
        (["pocket_calculator"], ["pocket_calculator"]),
    ],
)  # fmt: skip
def test_tools_of_a_server_are_known_before_an_episode(tools, names):
    assert [spec.name for spec in assemble(with_tools(tools)).offered_tools] == names


@pytest.mark.slow
def test_demonstrations_can_call_tools_of_a_server(tmp_path: Path):
    call = {"id": "a", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "1+1"}'}}
    messages = [
        {"role": "user", "content": "Compute 1+1"}, {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "2"}, {"role": "assistant", "content": "2"},
    ]  # fmt: skip
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    assembly = assemble(with_tools([{"name": "mcp", "command": SERVER}]))
    settings = DataSettings(path=str(tmp_path / "chats.jsonl"))
    (episode,) = read_demonstrations(assembly, settings, "supervised.data").iterate_episodes()
    assert episode.score is not None
    assert [call.name for call in episode.turns[0].message.tool_calls] == ["calculator"]


def test_options_of_a_function_are_bound_and_hidden_from_the_model():
    tool = bind_component("tool", {"name": f"{__name__}:find_order", "api_key": "k", "shop": 7}, TOOLS)
    toolset = Toolset([tool])
    assert list(toolset.specs[0].parameters["properties"]) == ["number"]
    assert (toolset.specs[0].name, toolset.specs[0].description) == ("find_order", "Find an order.")
    assert toolset.effects == {"find_order": "read"}
    result = asyncio.run(toolset.call(ToolCall("find_order", '{"number": 3}', "a")))
    assert result.content[0].text == "3 of 7 with k"


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"apikey": "k"}, "apikey", 'has no parameter apikey; did you mean "api_key"'),
        ({"shop": "seven"}, "shop", "integer"),
    ],
)
def test_unknown_option_of_a_function_is_refused(options, key, message):
    with pytest.raises(OptionError, match=message) as refused:
        bind_component("tool", {"name": f"{__name__}:find_order", **options}, TOOLS)
    assert refused.value.key == key
