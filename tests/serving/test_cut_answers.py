"""An answer that reaches `max_tokens` reports so in every API, also after a complete call."""

import pytest

from tests_apis import WAYS, ask
from tests_served import Scripted, called, made, played
from whetstone.chat import Message, Text

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOLS = [("add", SCHEMA)]
TWO = Message("assistant", (), (*called(a=1, b=2).tool_calls, *called(a=3, b=4).tool_calls))
FORMATS = ["hermes", "llama3", "compact", "qwen3_coder", "deepseek_v31", "functionary_v31", "gemma4"]


@pytest.mark.parametrize("format", FORMATS)
def test_answer_cut_after_a_complete_call_reports_length(format):
    assembly = made(f"chat.format={format}")
    one = Message("assistant", (), TWO.tool_calls[:1])
    length, first = (len(assembly.chat.write(line, ())) for line in (TWO, one))

    async def work(served):
        replies_of = {}
        for most in (first - 1, length - 8, length - 1, length):
            replies_of[most] = [await ask(served, way, tools=TOOLS, max_tokens=most) for way in WAYS]
        return replies_of

    replies_of = played(assembly, work, engine=Scripted(assembly, *[TWO] * 4 * len(WAYS)))
    for most, replies in replies_of.items():
        assert {reply.ended for reply in replies} == {"tool_calls" if most == length else "length"}
        assert len({len(reply.calls) for reply in replies}) == 1
    assert [len(replies_of[most][0].calls) for most in (length - 8, length)] == [1, 2]


@pytest.mark.parametrize("way", WAYS)
def test_text_that_is_cut_reports_length_and_whole_text_does_not(way):
    assembly = made()
    line = Message("assistant", (Text("one two three"),))
    length = len(assembly.chat.write(line, ()))

    async def work(served):
        return [(await ask(served, way, max_tokens=most)).ended for most in (2, length - 1, length)]

    assert played(assembly, work, engine=Scripted(assembly, *[line] * 3)) == ["length", "length", "stop"]
