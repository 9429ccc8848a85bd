"""A response that reaches `max_tokens` reports so in every API, also after a complete call."""

import pytest

from support.chat_apis import WAYS, ask
from support.served_policy import Scripted, build_assembly, called, played
from whetstone.chat import Message, Text

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOLS = [("add", SCHEMA)]
TWO = Message("assistant", (), (*called(a=1, b=2).tool_calls, *called(a=3, b=4).tool_calls))
FORMATS = ["hermes", "llama3", "compact", "qwen3_coder", "deepseek_v31", "functionary_v31", "gemma4"]


@pytest.mark.parametrize("format", FORMATS)
def test_response_truncated_after_a_complete_call_reports_length(format):
    assembly = build_assembly(f"chat.format={format}")
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
def test_truncated_text_reports_length_and_complete_text_does_not(way):
    assembly = build_assembly()
    line = Message("assistant", (Text("one two three"),))
    length = len(assembly.chat.write(line, ()))

    async def work(served):
        return [(await ask(served, way, max_tokens=most)).ended for most in (2, length - 1, length)]

    assert played(assembly, work, engine=Scripted(assembly, *[line] * 3)) == ["length", "length", "stop"]


BROKEN = '<tool_call>{"name": "add", "arguments": {"a": 1</tool_call>'


@pytest.mark.parametrize("way", WAYS)
def test_malformed_call_is_returned_as_text_and_logged(way, caplog):
    assembly = build_assembly()
    line = Message("assistant", (Text(BROKEN),))

    async def work(served):
        return await ask(served, way, tools=TOOLS)

    reply = played(assembly, work, engine=Scripted(assembly, line))
    assert (reply.text.strip(), reply.calls, reply.ended) == (BROKEN, (), "stop")
    (record,) = [record for record in caplog.records if "malformed tool call" in record.getMessage()]
    assert record.name == "whetstone.access"
    assert "sent as text: " in record.getMessage()


def test_conversation_continues_after_a_malformed_call_that_the_client_sends_back():
    assembly = build_assembly()
    lines = [Message("assistant", (Text(BROKEN),)), Message("assistant", (Text("5"),))]

    async def work(served):
        client, tools = served.client(), [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
        messages = [{"role": "user", "content": "Compute 2+3"}]
        for _ in range(2):
            answer = await client.chat.completions.create(model="tiny", messages=messages, tools=tools)
            messages += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "again"}]
        (episode,) = served.episodes
        return episode.build_trajectory()

    trajectory = played(assembly, work, engine=Scripted(assembly, *lines))
    assert [turn.opens_segment for turn in trajectory.turns] == [True, False]
    assert trajectory.turns[0].message.malformed
