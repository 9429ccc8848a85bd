"""Several blocks of calls in a turn, malformed blocks next to valid ones, and cut turns: nothing is dropped."""

import json

import pytest

from support.slow import mostly_slow
from whetstone.chat import FORMATS, ToolCall, ToolSpec, assistant

TOOL = ToolSpec("look_up", "Looks up.", {"type": "object", "properties": {"query": {"type": "string"}}})
ONE, TWO = ToolCall("look_up", '{"query": "first"}'), ToolCall("look_up", '{"query": "second"}')
WHOLE_TURN = {"llama3", "llama4", "xlam", "harmony", "functionary_v32", "react", "code", "compact", "tags"}
"""Formats whose calls are the whole turn, or whose turn contains one call."""
BLOCKS = sorted(FORMATS.keys() - WHOLE_TURN)
EACH = pytest.mark.parametrize(
    "name", mostly_slow(BLOCKS, quick=["glm", "hermes", "kimi_k2", "lfm2", "gemma4", "nemotron"])
)


def written(name, *calls):
    return FORMATS[name]().write(assistant("", *calls), [TOOL])


def arguments_of(message):
    return [json.loads(call.arguments)["query"] for call in message.tool_calls]


@EACH
@pytest.mark.parametrize("between", ["", "\n", " Then the other. "])
def test_calls_of_every_block_are_read_and_the_text_between_is_kept(name, between):
    message = FORMATS[name]().read(f"First.{written(name, ONE)}{between}{written(name, TWO)}", [TOOL])
    assert (arguments_of(message), message.malformed) == (["first", "second"], ())
    assert "First." in message.text
    assert between.strip() in message.text


@EACH
def test_a_malformed_block_is_reported_next_to_a_valid_one(name):
    broken = written(name, ONE).replace("look_up", "")
    for text in (f"{broken}{written(name, TWO)}", f"{written(name, TWO)}{broken}"):
        message = FORMATS[name]().read(text, [TOOL])
        assert message.malformed
        assert arguments_of(message) == ["second"]


@EACH
def test_turn_truncated_in_its_call_is_never_an_answer(name):
    text = written(name, ONE)
    opening = next(count for count in range(4, len(text)) if FORMATS[name]().read(text[:count], [TOOL]).malformed)
    assert opening <= max(4, *map(len, FORMATS[name]().markers)) + 1
    for count in range(opening, len(text.rstrip())):
        message = FORMATS[name]().read(text[:count], [TOOL])
        assert message.malformed or arguments_of(message) == ["first"], text[:count]


@EACH
def test_whitespace_around_markers_changes_nothing(name):
    text = written(name, ONE)
    for marker in FORMATS[name]().markers:
        if "{" in marker or not marker.startswith(("<", "[")) or marker.endswith(("=", '"')):
            continue
        spaced = text.replace(marker, f" {marker}", 1)
        message = FORMATS[name]().read(spaced, [TOOL])
        query = arguments_of(message)
        assert message.malformed or [each.strip() for each in query] == ["first"], spaced


@pytest.mark.parametrize("name", BLOCKS)
def test_markers_are_single_tags(name):
    for marker in FORMATS[name]().markers:
        assert "><" not in marker.replace("[>[", ""), marker
        assert "\n" not in marker or "```" in marker
