"""A tool is one Python definition, which works and trains unchanged in recipes of different environments."""

import asyncio
import json

import pytest

from support.small import SMALL
from whetstone.assembly import assemble
from whetstone.chat import ToolCall, assistant
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

DEFINITION = '''
def roman(number: int) -> str:
    """A number from 1 to 39 in Roman numerals."""
    return "X" * (number // 10) + ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"][number % 10]
'''


@pytest.mark.parametrize("recipe", ["demo", "multi-hop-search"])
def test_new_tool_trains_unchanged_in_two_recipes(recipe, tmp_path, monkeypatch):
    (tmp_path / "roman_tools.py").write_text(DEFINITION)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ["environment.name=tools", "environment.tools=[roman_tools:roman]", "supervised=null", "ablations=null"]
    small = [change for change in SMALL if not change.startswith("supervised")]
    resolved = load_recipe(recipe, [*small, *own, "reward=support.small:parity", "reinforcement.steps=1"])

    assembly = assemble(resolved)

    async def called():
        environment = assembly.environment()
        seen = await environment.reset(assembly.source.task(0), seed=0)
        answer = await environment.step(assistant("", ToolCall("roman", '{"number": 14}', "1")))
        await environment.close()
        return [tool.name for tool in seen.tools], answer.observation.messages[-1].text

    assert asyncio.run(called()) == (["roman"], "XIV")
    train(resolved, tmp_path / "run", progress=Progress(quiet=True))
    (row,) = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert row["update/tokens"] > 0
