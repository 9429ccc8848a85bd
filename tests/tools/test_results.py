"""Values that tools return are rendered as JSON, with the same text in every process."""

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.returned_values import ADDRESSES, VALUES, give, give_later
from support.slow import examples
from whetstone.chat import Image, Text, ToolCall
from whetstone.strict_json import to_plain_values
from whetstone.tools import Toolset


def answer(tool, **arguments):
    return asyncio.run(Toolset([tool]).call(ToolCall(tool.__name__, json.dumps(arguments))))


def strict(text):
    def refuse(word):
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("tool", [give, give_later])
@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_any_type_is_json(name, tool):
    result = answer(tool, name=name)
    assert (result.record.outcome, result.text) == ("ok", VALUES[name][1])
    if "bytes" not in name or "inside" in name:
        strict(result.text)


@pytest.mark.parametrize("name", ADDRESSES)
def test_an_address_in_memory_is_an_error_of_the_tool(name):
    result = answer(give, name=name)
    assert result.record.outcome == "tool_failed"
    assert "the tool returned an object of type" in result.text


@pytest.mark.slow
def test_every_value_has_the_same_text_in_every_process():
    code = (
        "import asyncio, json; from support.returned_values import VALUES, give\n"
        "from whetstone.chat import ToolCall; from whetstone.tools import Toolset\n"
        "toolset = Toolset([give])\n"
        "calls = [ToolCall('give', json.dumps({'name': name})) for name in VALUES]\n"
        "print(json.dumps([asyncio.run(toolset.call(call)).text for call in calls]))"
    )
    texts = []
    for seed in ("1", "2"):
        path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        command = [sys.executable, "-c", code]
        texts.append(json.loads(subprocess.run(command, capture_output=True, check=True, env=environment).stdout))
    assert texts[0] == texts[1] == [text for _, text in VALUES.values()]


def count(most: int):
    """Count in a generator."""
    yield from range(most)


async def count_later(most: int):
    """Count in an asynchronous generator."""
    for number in range(most):
        yield number


async def count_lazily(most: int) -> object:
    """Return a generator from a coroutine."""
    return (number for number in range(most))


@pytest.mark.parametrize("tool", [count, count_later, count_lazily])
def test_a_generator_is_read_to_its_end_or_to_a_limit(tool):
    assert answer(tool, most=3).text == "[0, 1, 2]"
    result = answer(tool, most=10**12)
    assert (result.record.outcome, "yields more than 100000 values" in result.text) == ("tool_failed", True)


def test_texts_next_to_images_are_content():
    def look() -> list:
        """Look."""
        return ["left", Image("data:,"), {"size": 3}]

    assert answer(look).content == (Text("left"), Image("data:,"), Text('{"size": 3}'))


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A value that can be in a set."""

    name: str
    numbers: frozenset


KEYS = st.text(max_size=3) | st.integers() | st.booleans() | st.none() | st.floats() | st.dates() | st.tuples(st.text())
HASHABLE = st.recursive(
    KEYS | st.binary(max_size=3) | st.decimals(allow_nan=False) | st.uuids(),
    lambda inner: (
        st.frozensets(inner, max_size=4) | st.tuples(inner) | st.builds(Leaf, st.text(), st.frozensets(inner))
    ),
    max_leaves=6,
)
ANYTHING = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(HASHABLE, inner, max_size=3) | st.sets(HASHABLE, max_size=4)
    ),
    max_leaves=8,
)


@examples(100)
@given(value=ANYTHING)
def test_any_nesting_is_strict_json_and_equal_when_read(value):
    once = to_plain_values(value)
    assert strict(json.dumps(once, allow_nan=False)) == once
    assert to_plain_values(once) == once


@examples(60)
@given(values=st.lists(HASHABLE, unique=True, max_size=8), data=st.data())
def test_the_order_in_which_a_set_is_filled_does_not_matter(values, data):
    shuffled = data.draw(st.permutations(values))

    class Ordered(frozenset):
        def __iter__(self):
            return iter(shuffled)

    assert json.dumps(to_plain_values(Ordered(values))) == json.dumps(to_plain_values(set(values)))
