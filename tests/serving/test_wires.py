"""The APIs a policy answers over, by their official clients: what is drawn and recorded is the same through each."""

import json

import openai
import pytest

from tests_served import HI, TOOL, Scripted, called, made, played
from whetstone.chat import Message, Text, ToolCall
from whetstone.chat.api.anthropic_messages import input_of
from whetstone.chat.api.asked import RefusedError
from whetstone.chat.api.stored_responses import StoredResponses
from whetstone.inference.protocol import EngineAbilities
from whetstone.serving import Keys
from whetstone.serving.access import Key, hashed_key

FUNCTION = TOOL["function"]
FLAT = {"type": "function", **FUNCTION}
ANTHROPIC = {"name": "add", "description": "Adds.", "input_schema": FUNCTION["parameters"]}
SYSTEM, OPENING, TURNS = "Be brief.", "Compute 2+3", 3


@pytest.fixture(scope="module")
def assembly():
    return made()


def said(text, *calls):
    return Message("assistant", (Text(text),) if text else (), calls)


TWO_CALLS = (*called(a=1, b=2).tool_calls, *called(a=3, b=4).tool_calls)
LINES = [said("both: ", *TWO_CALLS), said("<think>two and three</think>five"), said("six")]


async def by_chat(served, most):
    client, heard = served.client(), [{"role": "system", "content": SYSTEM}, {"role": "user", "content": OPENING}]
    for _ in range(TURNS):
        told = await client.chat.completions.create(model="tiny", messages=heard, tools=[TOOL], max_tokens=most)
        message = told.choices[0].message
        heard.append(message.model_dump(exclude_none=True))
        calls = message.tool_calls or ()
        heard += [{"role": "tool", "tool_call_id": call.id, "content": "5"} for call in calls]
        heard += [] if calls else [{"role": "user", "content": "and now?"}]


async def by_responses(served, most):
    client, heard = served.client(), [{"role": "user", "content": OPENING}]
    for _ in range(TURNS):
        told = await client.responses.create(
            model="tiny", instructions=SYSTEM, input=heard, tools=[FLAT], max_output_tokens=most, store=False
        )
        heard += [item.model_dump(exclude_none=True) for item in told.output]
        heard += _heard(told)


async def by_stored_responses(served, most):
    client, heard, before = served.client(), OPENING, openai.omit
    for _ in range(TURNS):
        told = await client.responses.create(
            model="tiny",
            instructions=SYSTEM,
            input=heard,
            tools=[FLAT],
            max_output_tokens=most,
            previous_response_id=before,
        )
        heard, before = _heard(told), told.id


def _heard(told):
    calls = [item for item in told.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "5"} for call in calls]
    return results or [{"role": "user", "content": [{"type": "input_text", "text": "and now?"}]}]


async def by_messages(served, most):
    client, heard = served.anthropic(), [{"role": "user", "content": OPENING}]
    for _ in range(TURNS):
        told = await client.messages.create(
            model="tiny",
            system=SYSTEM,
            messages=heard,
            tools=[ANTHROPIC],
            max_tokens=most,
            thinking={"type": "adaptive"},
        )
        heard.append({"role": "assistant", "content": [block.model_dump() for block in told.content]})
        calls = [block for block in told.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "5"} for call in calls]
        heard.append({"role": "user", "content": results or [{"type": "text", "text": "and now?"}]})


@pytest.mark.parametrize("scripted", [True, False])
def test_a_conversation_has_the_same_tokens_through_every_api(assembly, scripted):
    """Two calls at once, a thought, plain text; and the same over what a model draws."""

    def recorded(by):
        async def work(served):
            await by(served, 90 if scripted else 16)
            (episode,) = served.episodes
            return episode.trajectory()

        return played(assembly, work, engine=Scripted(assembly, *LINES) if scripted else None)

    first, *others = [recorded(by) for by in (by_chat, by_responses, by_stored_responses, by_messages)]
    assert len(first.turns) == TURNS
    assert not any(turn.opens_segment for turn in first.turns[1:])
    for other in others:
        assert [(turn.context, turn.action.ids, turn.message) for turn in other.turns] == [
            (turn.context, turn.action.ids, turn.message) for turn in first.turns
        ]
        assert [turn.action.logprobs for turn in other.turns] == [turn.action.logprobs for turn in first.turns]


@pytest.mark.parametrize("line", [*LINES, said("", *TWO_CALLS)])
def test_a_stream_comes_to_what_is_said_at_once(assembly, line):
    async def work(served):
        client, other = served.client(), served.anthropic()
        asked = {"model": "tiny", "input": OPENING, "tools": [FLAT]}
        ours = {"model": "tiny", "messages": HI, "tools": [ANTHROPIC], "max_tokens": 200}
        ours["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        found = [await client.responses.create(**asked), await other.messages.create(**ours)]
        async with client.responses.stream(**asked) as stream:
            numbers = [event.sequence_number async for event in stream]
            found.append(await stream.get_final_response())
        async with other.messages.stream(**ours) as stream:
            found.append(await stream.get_final_message())
        return found, numbers

    (response, message, responses, messages), numbers = played(assembly, work, engine=Scripted(assembly, *[line] * 4))
    assert numbers == list(range(len(numbers)))
    assert _plain(responses) == _plain(response)
    assert (responses.usage, responses.status) == (response.usage, response.status)
    assert _blocks(messages) == _blocks(message)
    assert (messages.stop_reason, messages.usage.output_tokens) == (message.stop_reason, message.usage.output_tokens)
    assert messages.usage.input_tokens == message.usage.input_tokens > 0


def _plain(response):
    """Items without what the client's library adds."""
    found = [item.model_dump(include={"type", "name", "arguments", "call_id"}) for item in response.output]
    return found, response.output_text.strip()


def _blocks(message):
    return [{k: v.strip() if k == "text" else v for k, v in block.to_dict().items()} for block in message.content]


def test_pieces_that_are_shown_are_drawn_as_the_whole_is(assembly):
    async def work(served):
        client = served.client()
        asked = {"model": "tiny", "messages": HI, "max_tokens": 40, "seed": 11}
        await client.chat.completions.create(**asked)
        async for _ in await client.chat.completions.create(**asked, stream=True):
            pass
        return [episode.said[0].action for episode in served.episodes]

    whole, pieces = played(assembly, work)
    assert len(whole) > 20
    assert pieces.ids == whole.ids
    assert pieces.logprobs == whole.logprobs


def test_a_prompt_that_goes_on_from_an_answer_stands_behind_its_tokens(assembly):
    tokenizer = assembly.chat.tokenizer

    async def work(served):
        client = served.client()
        first = await client.completions.create(model="tiny", prompt="one two", max_tokens=6, seed=1)
        await client.completions.create(model="tiny", prompt=f"one two{_text(served)} three", max_tokens=6)
        by_text = list(served.episodes)
        known = by_text[0].said[-1]
        ids = [*known.context.ids, *known.action.ids, *tokenizer.encode("four")]
        await client.completions.create(model="tiny", prompt=ids, max_tokens=6, stop=["never"])
        await client.completions.create(model="tiny", prompt="else", max_tokens=6)
        return first, [episode.trajectory() for episode in served.episodes]

    def _text(served):
        (episode,) = served.episodes
        return episode.said[0].text.removeprefix("one two")

    first, trajectories = played(assembly, work)
    assert first.usage.completion_tokens == len(trajectories[0].turns[0].action)
    assert sorted(len(each.turns) for each in trajectories) == [1, 3]
    (long,) = [each for each in trajectories if len(each.turns) == 3]
    assert [turn.opens_segment for turn in long.turns] == [True, False, False]
    assert len(long.segments()) == 1


def test_a_completion_is_streamed_and_told_with_its_log_probs(assembly):
    async def work(served):
        client = served.client()
        asked = {"model": "tiny", "prompt": "one", "max_tokens": 12, "seed": 4}
        whole = await client.completions.create(**asked, logprobs=2)
        pieces = [piece async for piece in await client.completions.create(**asked, stream=True)]
        return whole.choices[0], pieces

    whole, pieces = played(assembly, work)
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == whole.text
    assert len(whole.logprobs.tokens) == len(whole.logprobs.token_logprobs) == 12
    for top in whole.logprobs.top_logprobs:
        assert 1 <= len(top) <= 2  # tokens of half a letter are written alike


def test_the_likeliest_tokens_are_named_with_what_the_model_thinks_of_them(assembly):
    async def work(served):
        asked = {"max_tokens": 8, "temperature": 0}
        told = await served.client().chat.completions.create(
            model="tiny", messages=HI, logprobs=True, top_logprobs=3, **asked
        )
        response = await served.client().responses.create(
            model="tiny", input=OPENING, top_logprobs=3, max_output_tokens=8, temperature=0
        )
        return told.choices[0].logprobs.content, response.output[0].content[0].logprobs

    chat, response = played(assembly, work)
    for piece in chat:
        likeliest = [top.logprob for top in piece.top_logprobs]
        assert likeliest == sorted(likeliest, reverse=True)
        assert len(likeliest) == 3
        assert (piece.token, piece.logprob) == (piece.top_logprobs[0].token, likeliest[0])
    assert [piece.logprob for piece in response] == [piece.logprob for piece in chat]


def test_tokens_are_counted_as_they_are_read(assembly):
    async def work(served):
        client, asked = served.anthropic(), {"model": "tiny", "messages": HI, "system": SYSTEM, "tools": [ANTHROPIC]}
        counted = await client.messages.count_tokens(**asked)
        told = await client.messages.create(**asked, max_tokens=1)
        return counted.input_tokens, told.usage.input_tokens, len(served.episodes)

    counted, read, episodes = played(assembly, work)
    assert counted == read
    assert episodes == 1


@pytest.mark.parametrize(
    ("line", "more", "reason", "stop"),
    [
        (said("one two three"), {}, "end_turn", None),
        (said("one two three"), {"stop_sequences": ["three", "two"]}, "stop_sequence", "two"),
        (said("one two three"), {"max_tokens": 2}, "max_tokens", None),
        (called(a=1), {}, "tool_use", None),
    ],
)
def test_why_an_answer_ended_is_told(assembly, line, more, reason, stop):
    async def work(served):
        asked = {"model": "tiny", "messages": HI, "tools": [ANTHROPIC], "max_tokens": 100, **more}
        return await served.anthropic().messages.create(**asked)

    told = played(assembly, work, engine=Scripted(assembly, line))
    assert (told.stop_reason, told.stop_sequence) == (reason, stop)


def test_arguments_that_are_no_object_come_back_as_the_model_wrote_them():
    from whetstone.chat.api.anthropic_messages import asked_of

    for text in ('{"a": ', "[1]", '{"a": NaN}', '{"a": 1}'):
        call = ToolCall("add", text, "c")
        block = {"type": "tool_use", "id": "c", "name": "add", "input": input_of(call)}
        result = {"type": "tool_result", "tool_use_id": "c", "content": "5"}
        heard = [*HI, {"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
        asked = asked_of({"messages": heard, "max_tokens": 1})
        assert [call.arguments for call in asked.messages[1].tool_calls] == [text]


def test_responses_are_kept_as_long_as_there_is_room_for_them_and_for_whose_they_are():
    stored = StoredResponses(most=2)
    for number in range(3):
        body = stored.resolved("a", {"input": f"hi {number}"})
        stored.keep("a", body, {"id": f"r{number}", "output": [{"type": "message"}]})
    assert len(stored) == 2
    assert len(stored.resolved("a", {"input": "on", "previous_response_id": "r2"})["input"]) == 3
    for owner, id in (("a", "r0"), ("b", "r2")):
        with pytest.raises(RefusedError, match="there is no response"):
            stored.resolved(owner, {"input": "on", "previous_response_id": id})
    tiny = StoredResponses(most_bytes=10)
    tiny.keep("a", tiny.resolved("a", {"input": "long" * 9}), {"id": "r", "output": []})
    assert len(tiny) == 0


def test_a_response_is_fetched_and_deleted_by_its_own_key_alone(assembly):
    import anthropic  # takes a second, which others do not wait for

    keys = Keys({hashed_key(name): Key(name, hashed_key(name)) for name in ("a", "b")})

    async def work(served):
        own, other = served.client(key="a"), served.client(key="b")
        kept = await own.responses.create(model="tiny", input="hi", max_output_tokens=2)
        gone = await own.responses.create(model="tiny", input="hi", max_output_tokens=2, store=False)
        assert (await own.responses.retrieve(kept.id)).output_text == kept.output_text
        for client, id in ((other, kept.id), (own, gone.id)):
            with pytest.raises(openai.NotFoundError, match="there is no response"):
                await client.responses.retrieve(id)
        await own.responses.delete(kept.id)
        with pytest.raises(openai.NotFoundError, match="there is no response"):
            await own.responses.create(model="tiny", input="on", previous_response_id=kept.id)
        with pytest.raises(anthropic.AuthenticationError):
            await served.anthropic(key="c").messages.create(model="tiny", messages=HI, max_tokens=2)
        assert (await served.anthropic(key="a").models.list()).data[0].id == "tiny"

    played(assembly, work, keys=keys)


CALL = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "5"}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "add", "input": {}}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "5"}]}
REFUSED = [
    ("responses", {"model": "gpt"}, 404, "The model `gpt` does not exist"),
    ("responses", {"input": [CALL]}, 400, "input[0]: the call c has no result behind it"),
    ("responses", {"input": [OUTPUT]}, 400, "input[0]: a result of a call that does not stand before it (c)"),
    ("responses", {"input": 5}, 400, "input: a list, got 5"),
    ("responses", {"input": "long " * 2000}, 400, "maximum context length is 768 tokens"),
    ("responses", {"tools": [FLAT, FLAT]}, 400, 'there is a tool "add" already'),
    ("responses", {"tools": [{"type": "web_search"}]}, 400, "tools[0]: of type web_search; there is: function"),
    ("responses", {"tool_choice": "required"}, 400, "tool_choice: required, and there are no tools"),
    ("responses", {"background": True}, 400, "background: an answer is waited for here"),
    ("responses", {"previous_response_id": "resp_1"}, 404, "there is no response resp_1"),
    ("messages", {"model": "claude"}, 404, "The model `claude` does not exist"),
    ("messages", {"messages": [*HI, USE, *HI]}, 400, "messages[1]: the call c has no result behind it"),
    ("messages", {"messages": [RESULT]}, 400, "messages[0]: a result of a call that does not stand before it (c)"),
    ("messages", {"messages": [*HI, {"role": "assistant", "content": "so"}]}, 400, "the last one is the assistant's"),
    ("messages", {"max_tokens": None}, 400, "max_tokens: Field required"),
    ("messages", {"temperature": 1.5}, 400, "temperature: from 0 to 1, got 1.5"),
    ("messages", {"tools": [ANTHROPIC, ANTHROPIC]}, 400, 'there is a tool "add" already'),
    ("messages", {"tool_choice": {"type": "tool", "name": "add"}}, 400, "is not among the tools"),
    ("messages", {"system": 5}, 400, "system: a list, got 5"),
    ("messages", {"mcp_servers": []}, 400, "mcp_servers: tools are called by the client"),
    ("completions", {"best_of": 2}, 400, "best_of: answers that are drawn and not returned could not be recorded"),
    ("completions", {"echo": True}, 400, "echo: the prompt is known to who sent it"),
    ("completions", {"prompt": []}, 400, "prompt: a text or a list of token ids"),
    ("completions", {"prompt": ["a", "b"]}, 400, "one of them a request"),
    ("completions", {"prompt": [1, 10**9]}, 400, "prompt: no token 1000000000; there are"),
    ("completions", {"logprobs": 6}, 400, "logprobs: from 0 to 5, got 6"),
]  # fmt: skip
ASKED = {"responses": {"input": "hi"}, "messages": {"messages": HI, "max_tokens": 4}, "completions": {"prompt": "hi"}}


def test_what_cannot_be_answered_is_refused_in_each_apis_own_shape(assembly):
    async def work(served):
        found = []
        async with served.http() as http:
            for path, more, _, _ in REFUSED:
                asked = {"model": "tiny", **ASKED[path], **more}
                found.append(await http.post(f"/v1/{path}", json=asked))
                found.append(await http.post(f"/v1/{path}", json={**asked, "stream": True}))
            far = await http.post("/v1/messages", content=b"{" + b" " * (17 << 20))
            for path in ("messages", "responses"):
                found.append(await http.post(f"/v1/{path}", content=b'{"model": 1e999}'))
        return found, far

    found, far = played(assembly, work)
    expected = [each for each in REFUSED for _ in range(2)]
    for answer, (path, _, status, words) in zip(found, expected, strict=False):
        error = answer.json()["error"]
        assert (answer.status_code, words in error["message"]) == (status, True), error
        shape = {"type", "message"} if path == "messages" else {"message", "type", "param", "code"}
        assert set(error) == shape
    assert [answer.status_code for answer in found[-2:]] == [400, 400]
    assert (far.status_code, far.json()["error"]["type"]) == (413, "request_too_large")


SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


def test_an_answer_held_to_a_schema_follows_it_and_is_recorded_as_it_was_drawn(assembly):
    pytest.importorskip("llguidance")
    format = {"type": "json_schema", "schema": SCHEMA}

    async def work(served):
        client = served.client()
        asked = {"model": "tiny", "seed": 3, "messages": HI}
        shaped = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        whole = await client.chat.completions.create(**asked, response_format=shaped)
        pieces = [p async for p in await client.chat.completions.create(**asked, response_format=shaped, stream=True)]
        streamed = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
        response = await client.responses.create(model="tiny", input="hi", text={"format": {**format, "name": "x"}})
        message = await served.anthropic().messages.create(
            model="tiny", messages=HI, max_tokens=99, output_config={"format": format}
        )
        texts = [whole.choices[0].message.content, streamed, response.output_text, message.content[0].text]
        return texts, [episode.said[0].action for episode in served.episodes]

    texts, actions = played(assembly, work)
    for text in texts:
        read = json.loads(text)
        assert read["colour"] in ("red", "green")
        assert 0 <= read["count"] <= 99
    assert texts[0] == texts[1]
    assert (actions[0].ids, actions[0].authors) == (actions[1].ids, actions[1].authors)
    for action in actions:
        drawn = [p for p, author in zip(action.logprobs, action.authors, strict=True) if author == "policy"]
        assert 0 < len(drawn) < len(action)
        assert all(p <= 0 for p in drawn)


def test_an_engine_that_cannot_hold_to_a_schema_or_name_others_says_so(assembly):
    class Server(Scripted):
        def __init__(self, *lines):
            super().__init__(assembly, *lines)
            self.abilities = EngineAbilities(constraints=False, top_logprobs=False)

    async def work(served):
        client, asked = served.client(), {"model": "tiny", "messages": HI}
        with pytest.raises(
            openai.BadRequestError, match="this engine cannot constrain sampling; ask for it in a message"
        ):
            await client.chat.completions.create(**asked, response_format={"type": "json_object"})
        with pytest.raises(openai.BadRequestError, match="of drawn tokens alone this engine tells log-probs"):
            await client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)

    played(assembly, work, engine=Server())


@pytest.mark.parametrize("schema", [{"type": "nothing"}, {"$ref": "#/nowhere"}, {"type": "object", "not": {}}])
def test_a_schema_nothing_can_be_held_to_is_refused(assembly, schema):
    pytest.importorskip("llguidance")

    async def work(served):
        with pytest.raises(openai.BadRequestError, match="response_format"):
            await served.client().chat.completions.create(
                model="tiny",
                messages=HI,
                response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
            )

    played(assembly, work)
