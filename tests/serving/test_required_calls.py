"""`tool_choice`: a required call is guaranteed and has valid arguments, a forbidden call is text, over every API."""

import pytest

from support.chat_apis import REFUSED, WAYS, ask
from support.constrained_decoding import (
    JSON_FORMATS,
    OTHER_FORMATS,
    TAG_FORMATS,
    TOOLS,
    engine_for,
    made_with,
    validate,
)
from support.served_policy import HI, Scripted, called, played
from whetstone.chat import Message, Text
from whetstone.inference.protocol import EngineCapabilities
from whetstone.trajectory import Author

pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'whetstone-rl[serve]'")
pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install jsonschema")


@pytest.mark.parametrize("format", [*JSON_FORMATS, *TAG_FORMATS])
@pytest.mark.parametrize("choice", ["required", "book_room"])
def test_required_call_has_valid_arguments_in_every_api(format, choice):
    assembly = made_with(format)

    async def work(served):
        replies = [await ask(served, way, tools=TOOLS, choice=choice, max_tokens=2000) for way in WAYS]
        return replies, [episode.answers[0] for episode in served.episodes]

    replies, records = played(assembly, work, engine=engine_for(assembly.chat))
    assert [reply.ended for reply in replies] == ["tool_calls"] * len(WAYS)
    for reply, record in zip(replies, records, strict=True):
        assert reply.calls
        assert not reply.text
        validate(reply.calls)
        if choice != "required":
            assert [name for name, _ in reply.calls] == [choice]
        assert [call.name for call in record.message.tool_calls] == [name for name, _ in reply.calls]
        assert not record.message.malformed


def test_required_call_of_a_model_is_recorded_with_the_log_probs_of_the_masked_distribution():
    assembly = made_with("hermes")

    async def work(served):
        reply = await ask(served, ("chat", False), tools=TOOLS[:1], choice="required", single=True, max_tokens=500)
        (episode,) = served.episodes
        return reply, episode.answers[0].action

    reply, action = played(assembly, work)
    assert reply.ended == "tool_calls"
    validate(reply.calls)
    tokenizer = assembly.chat.tokenizer
    written = tokenizer.decode(action.ids, skip_special_tokens=False)
    assert written.startswith('<tool_call>\n{"name": "book_room", "arguments": {"floor": ')
    sampled = [p for p, author in zip(action.logprobs, action.authors, strict=True) if author is Author.POLICY]
    assert 0 < len(sampled) < len(action)
    assert all(p <= 0 for p in sampled)
    assert action.authors[0] is Author.INSERTED
    assert set(action.authors) == {Author.POLICY, Author.INSERTED}


@pytest.mark.parametrize("way", WAYS)
def test_one_call_is_made_if_parallel_calls_are_switched_off(way):
    for format in ("mistral", "tool_calls", "hermes", "qwen3_coder"):
        assembly = made_with(format)

        async def work(served):
            return await ask(served, way, tools=TOOLS, choice="required", single=True)

        async def free(served):
            return await ask(served, way, tools=[("add", {"type": "object"})], choice="auto", single=True)

        for seed in range(3):
            reply = played(assembly, work, engine=engine_for(assembly.chat, seed))
            assert len(reply.calls) == 1
        two = Message("assistant", (), (*called(a=1).tool_calls, *called(a=2).tool_calls))
        assert len(played(assembly, free, engine=Scripted(assembly, two)).calls) == 1


@pytest.mark.parametrize("format", ["hermes", "mistral", "llama3", "qwen3_coder", "compact", "harmony"])
@pytest.mark.parametrize(("tools", "choice"), [(TOOLS, "none"), ((), None)])
def test_forbidden_call_is_text_in_every_api(format, tools, choice):
    assembly = made_with(format)
    line = called("stop")
    written = assembly.chat.tokenizer.decode(assembly.chat.write(line, ())[:-1], skip_special_tokens=False)

    async def work(served):
        replies = [await ask(served, way, tools=tools, choice=choice) for way in WAYS]
        return replies, list(served.episodes)

    replies, episodes = played(assembly, work, engine=Scripted(assembly, *[line] * len(WAYS)))
    assert {reply.calls for reply in replies} == {()}
    assert {reply.ended for reply in replies} == {"stop"}
    assert {reply.text.strip() for reply in replies} == {written.strip()}
    assert not any(one.message.tool_calls or one.message.malformed for episode in episodes for one in episode.answers)


@pytest.mark.parametrize("format", ["hermes", "mistral", "qwen3_coder", "harmony"])
def test_conversation_continues_after_a_call_that_was_text(format):
    assembly = made_with(format)

    async def work(served):
        client, messages = served.client(), list(HI)
        for _ in range(2):
            answer = await client.chat.completions.create(model="tiny", messages=messages)
            messages += [{"role": "assistant", "content": answer.choices[0].message.content}, *HI]
        (episode,) = served.episodes
        return episode.build_trajectory()

    trajectory = played(assembly, work, engine=Scripted(assembly, called("stop"), Message("assistant", (Text("so"),))))
    assert [turn.opens_segment for turn in trajectory.turns] == [True, False]


@pytest.mark.parametrize("format", OTHER_FORMATS)
def test_format_without_a_grammar_is_refused_by_name(format):
    async def work(served):
        for way in WAYS:
            with pytest.raises(
                Exception, match=rf"format {format} cannot guarantee .*; use tool_choice auto"
            ) as raised:
                await ask(served, way, tools=TOOLS, choice="required")
            assert raised.value.status_code == 400

    assembly = made_with(format)
    played(assembly, work, engine=engine_for(assembly.chat))


def test_unsupported_schema_is_refused_with_the_remedy():
    assembly = made_with("hermes")
    engine = engine_for(assembly.chat)
    unsupported = [("pick", {"type": "object", "properties": {"a": {"not": {"type": "string"}}}, "required": ["a"]})]
    cases = [
        ({"stop": ["x"], "tools": TOOLS}, "stop: .* leave it out"),
        ({"extra_body": {"logit_bias": {"5": -100}}, "tools": TOOLS}, "logit_bias: .*use values above -100"),
        (
            {"tools": unsupported},
            "tool_choice: the schema of a tool cannot be followed: .*not.*; leave that keyword out",
        ),
    ]

    async def work(served):
        for more, words in cases:
            with pytest.raises(REFUSED, match=words):
                await ask(served, ("chat", False), choice="required", **more)
        served.engine.capabilities = EngineCapabilities(constraints=False)
        with pytest.raises(REFUSED, match="tool_choice: this engine cannot constrain sampling; use tool_choice auto"):
            await ask(served, ("chat", False), choice="required", tools=TOOLS)

    played(assembly, work, engine=engine)
