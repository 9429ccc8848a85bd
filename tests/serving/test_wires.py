"""The APIs of a policy with their official clients: sampled and recorded tokens are the same through each."""

import json

import openai
import pytest

from support.served_policy import HI, TOOL, Scripted, build_assembly, called, played
from whetstone.chat import Message, Text, ToolCall
from whetstone.chat.api.anthropic_messages import parse_input
from whetstone.chat.api.requests import RefusedError
from whetstone.chat.api.stored_responses import StoredResponses
from whetstone.inference.protocol import EngineCapabilities
from whetstone.serving import Keys
from whetstone.serving.api_keys import Key, hash_key

FUNCTION = TOOL["function"]
FLAT = {"type": "function", **FUNCTION}
ANTHROPIC = {"name": "add", "description": "Adds.", "input_schema": FUNCTION["parameters"]}
SYSTEM, OPENING, TURNS = "Be brief.", "Compute 2+3", 3


@pytest.fixture(scope="module")
def assembly():
    return build_assembly()


def assistant_message(text, *calls):
    return Message("assistant", (Text(text),) if text else (), calls)


TWO_CALLS = (*called(a=1, b=2).tool_calls, *called(a=3, b=4).tool_calls)
LINES = [
    assistant_message("both: ", *TWO_CALLS),
    assistant_message("<think>two and three</think>five"),
    assistant_message("six"),
]


async def by_chat(served, most):
    client, messages = served.client(), [{"role": "system", "content": SYSTEM}, {"role": "user", "content": OPENING}]
    for _ in range(TURNS):
        response = await client.chat.completions.create(model="tiny", messages=messages, tools=[TOOL], max_tokens=most)
        message = response.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        calls = message.tool_calls or ()
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "5"} for call in calls]
        messages += [] if calls else [{"role": "user", "content": "and now?"}]


async def by_responses(served, most):
    client, messages = served.client(), [{"role": "user", "content": OPENING}]
    for _ in range(TURNS):
        response = await client.responses.create(
            model="tiny", instructions=SYSTEM, input=messages, tools=[FLAT], max_output_tokens=most, store=False
        )
        messages += [item.model_dump(exclude_none=True) for item in response.output]
        messages += _follow_up(response)


async def by_stored_responses(served, most):
    client, messages, before = served.client(), OPENING, openai.omit
    for _ in range(TURNS):
        response = await client.responses.create(
            model="tiny",
            instructions=SYSTEM,
            input=messages,
            tools=[FLAT],
            max_output_tokens=most,
            previous_response_id=before,
        )
        messages, before = _follow_up(response), response.id


def _follow_up(response):
    calls = [item for item in response.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "5"} for call in calls]
    return results or [{"role": "user", "content": [{"type": "input_text", "text": "and now?"}]}]


async def by_messages(served, most):
    client, messages = served.anthropic(), [{"role": "user", "content": OPENING}]
    for _ in range(TURNS):
        response = await client.messages.create(
            model="tiny",
            system=SYSTEM,
            messages=messages,
            tools=[ANTHROPIC],
            max_tokens=most,
            thinking={"type": "adaptive"},
        )
        messages.append({"role": "assistant", "content": [block.model_dump() for block in response.content]})
        calls = [block for block in response.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "5"} for call in calls]
        messages.append({"role": "user", "content": results or [{"type": "text", "text": "and now?"}]})


@pytest.mark.parametrize("scripted", [True, False])
def test_conversation_has_the_same_tokens_through_every_api(assembly, scripted):
    """Compare two parallel calls, reasoning, plain text; and unconstrained samples of a model."""

    def recorded(by):
        async def work(served):
            await by(served, 90 if scripted else 16)
            (episode,) = served.episodes
            return episode.build_trajectory()

        return played(assembly, work, engine=Scripted(assembly, *LINES) if scripted else None)

    first, *others = [recorded(by) for by in (by_chat, by_responses, by_stored_responses, by_messages)]
    assert len(first.turns) == TURNS
    assert not any(turn.opens_segment for turn in first.turns[1:])
    for other in others:
        assert [(turn.context, turn.action.ids, turn.message) for turn in other.turns] == [
            (turn.context, turn.action.ids, turn.message) for turn in first.turns
        ]
        assert [turn.action.logprobs for turn in other.turns] == [turn.action.logprobs for turn in first.turns]


@pytest.mark.parametrize("line", [*LINES, assistant_message("", *TWO_CALLS)])
def test_stream_adds_up_to_the_complete_response(assembly, line):
    async def work(served):
        client, other = served.client(), served.anthropic()
        options = {"model": "tiny", "input": OPENING, "tools": [FLAT]}
        anthropic_options = {"model": "tiny", "messages": HI, "tools": [ANTHROPIC], "max_tokens": 200}
        anthropic_options["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        streams = [await client.responses.create(**options), await other.messages.create(**anthropic_options)]
        async with client.responses.stream(**options) as stream:
            numbers = [event.sequence_number async for event in stream]
            streams.append(await stream.get_final_response())
        async with other.messages.stream(**anthropic_options) as stream:
            streams.append(await stream.get_final_message())
        return streams, numbers

    (response, message, responses, messages), numbers = played(assembly, work, engine=Scripted(assembly, *[line] * 4))
    assert numbers == list(range(len(numbers)))
    assert _plain(responses) == _plain(response)
    assert (responses.usage, responses.status) == (response.usage, response.status)
    assert _blocks(messages) == _blocks(message)
    assert (messages.stop_reason, messages.usage.output_tokens) == (message.stop_reason, message.usage.output_tokens)
    assert messages.usage.input_tokens == message.usage.input_tokens > 0


def _plain(response):
    """Return items without fields that the client library adds."""
    items = [item.model_dump(include={"type", "name", "arguments", "call_id"}) for item in response.output]
    return items, response.output_text.strip()


def _blocks(message):
    return [{k: v.strip() if k == "text" else v for k, v in block.to_dict().items()} for block in message.content]


def test_streamed_pieces_are_sampled_as_the_complete_response(assembly):
    async def work(served):
        client = served.client()
        options = {"model": "tiny", "messages": HI, "max_tokens": 40, "seed": 11}
        await client.chat.completions.create(**options)
        async for _ in await client.chat.completions.create(**options, stream=True):
            pass
        return [episode.answers[0].action for episode in served.episodes]

    complete, pieces = played(assembly, work)
    assert len(complete) > 20
    assert pieces.ids == complete.ids
    assert pieces.logprobs == complete.logprobs


def test_prompt_that_continues_a_response_follows_its_tokens(assembly):
    tokenizer = assembly.chat.tokenizer

    async def work(served):
        client = served.client()
        first = await client.completions.create(model="tiny", prompt="one two", max_tokens=6, seed=1)
        await client.completions.create(model="tiny", prompt=f"one two{_text(served)} three", max_tokens=6)
        by_text = list(served.episodes)
        known = by_text[0].answers[-1]
        ids = [*known.context.ids, *known.action.ids, *tokenizer.encode("four")]
        await client.completions.create(model="tiny", prompt=ids, max_tokens=6, stop=["never"])
        await client.completions.create(model="tiny", prompt="else", max_tokens=6)
        return first, [episode.build_trajectory() for episode in served.episodes]

    def _text(served):
        (episode,) = served.episodes
        return episode.answers[0].text.removeprefix("one two")

    first, trajectories = played(assembly, work)
    assert first.usage.completion_tokens == len(trajectories[0].turns[0].action)
    assert sorted(len(each.turns) for each in trajectories) == [1, 3]
    (long,) = [each for each in trajectories if len(each.turns) == 3]
    assert [turn.opens_segment for turn in long.turns] == [True, False, False]
    assert len(long.segments()) == 1


def test_completion_is_streamed_with_its_log_probs(assembly):
    async def work(served):
        client = served.client()
        options = {"model": "tiny", "prompt": "one", "max_tokens": 12, "seed": 4}
        complete = await client.completions.create(**options, logprobs=2)
        pieces = [piece async for piece in await client.completions.create(**options, stream=True)]
        return complete.choices[0], pieces

    complete, pieces = played(assembly, work)
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == complete.text
    assert len(complete.logprobs.tokens) == len(complete.logprobs.token_logprobs) == 12
    for top in complete.logprobs.top_logprobs:
        assert 1 <= len(top) <= 2  # tokens of parts of a character have equal text


def test_most_likely_tokens_have_the_log_probs_of_the_model(assembly):
    async def work(served):
        options = {"max_tokens": 8, "temperature": 0}
        completion = await served.client().chat.completions.create(
            model="tiny", messages=HI, logprobs=True, top_logprobs=3, **options
        )
        response = await served.client().responses.create(
            model="tiny", input=OPENING, top_logprobs=3, max_output_tokens=8, temperature=0
        )
        return completion.choices[0].logprobs.content, response.output[0].content[0].logprobs

    chat, response = played(assembly, work)
    for piece in chat:
        likeliest = [top.logprob for top in piece.top_logprobs]
        assert likeliest == sorted(likeliest, reverse=True)
        assert len(likeliest) == 3
        assert (piece.token, piece.logprob) == (piece.top_logprobs[0].token, likeliest[0])
    assert [piece.logprob for piece in response] == [piece.logprob for piece in chat]


def test_token_counts_are_those_of_the_context(assembly):
    async def work(served):
        client, options = served.anthropic(), {"model": "tiny", "messages": HI, "system": SYSTEM, "tools": [ANTHROPIC]}
        counted = await client.messages.count_tokens(**options)
        response = await client.messages.create(**options, max_tokens=1)
        return counted.input_tokens, response.usage.input_tokens, len(served.episodes)

    counted, read, episodes = played(assembly, work)
    assert counted == read
    assert episodes == 1


@pytest.mark.parametrize(
    ("line", "more", "reason", "stop"),
    [
        (assistant_message("one two three"), {}, "end_turn", None),
        (assistant_message("one two three"), {"stop_sequences": ["three", "two"]}, "stop_sequence", "two"),
        (assistant_message("one two three"), {"max_tokens": 2}, "max_tokens", None),
        (called(a=1), {}, "tool_use", None),
    ],
)
def test_finish_reason_is_reported(assembly, line, more, reason, stop):
    async def work(served):
        options = {"model": "tiny", "messages": HI, "tools": [ANTHROPIC], "max_tokens": 100, **more}
        return await served.anthropic().messages.create(**options)

    result = played(assembly, work, engine=Scripted(assembly, line))
    assert (result.stop_reason, result.stop_sequence) == (reason, stop)


def test_arguments_that_are_no_object_are_returned_verbatim():
    from whetstone.chat.api.anthropic_messages import parse_anthropic_request

    for text in ('{"a": ', "[1]", '{"a": NaN}', '{"a": 1}'):
        call = ToolCall("add", text, "c")
        block = {"type": "tool_use", "id": "c", "name": "add", "input": parse_input(call)}
        result = {"type": "tool_result", "tool_use_id": "c", "content": "5"}
        messages = [*HI, {"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
        parsed = parse_anthropic_request({"messages": messages, "max_tokens": 1})
        assert [call.arguments for call in parsed.messages[1].tool_calls] == [text]


def test_stored_responses_are_bounded_in_total_and_per_key():
    stored = StoredResponses(most=2)
    for number in range(3):
        body = stored.resolve_input("a", {"input": f"hi {number}"})
        stored.store("a", body, {"id": f"r{number}", "output": [{"type": "message"}]})
    assert len(stored) == 2
    assert len(stored.resolve_input("a", {"input": "on", "previous_response_id": "r2"})["input"]) == 3
    for owner, id in (("a", "r0"), ("b", "r2")):
        with pytest.raises(RefusedError, match="there is no response"):
            stored.resolve_input(owner, {"input": "on", "previous_response_id": id})
    tiny = StoredResponses(most_bytes=10)
    tiny.store("a", tiny.resolve_input("a", {"input": "long" * 9}), {"id": "r", "output": []})
    assert len(tiny) == 0


def test_response_is_fetched_and_deleted_only_by_its_key(assembly):
    import anthropic  # takes a second, which others do not wait for

    keys = Keys({hash_key(name): Key(name, hash_key(name)) for name in ("a", "b")})

    async def work(served):
        own, other = served.client(key="a"), served.client(key="b")
        stored = await own.responses.create(model="tiny", input="hi", max_output_tokens=2)
        unstored = await own.responses.create(model="tiny", input="hi", max_output_tokens=2, store=False)
        assert (await own.responses.retrieve(stored.id)).output_text == stored.output_text
        for client, id in ((other, stored.id), (own, unstored.id)):
            with pytest.raises(openai.NotFoundError, match="there is no response"):
                await client.responses.retrieve(id)
        await own.responses.delete(stored.id)
        with pytest.raises(openai.NotFoundError, match="there is no response"):
            await own.responses.create(model="tiny", input="on", previous_response_id=stored.id)
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
    ("responses", {"input": [CALL]}, 400, "input[0]: the call c has no result; add its result"),
    ("responses", {"input": [OUTPUT]}, 400, "input[0]: no earlier message has the call c of this"),
    ("responses", {"input": 5}, 400, "input: expected a list, got 5"),
    ("responses", {"input": "long " * 2000}, 400, "maximum context length is 768 tokens"),
    ("responses", {"tools": [FLAT, FLAT]}, 400, 'duplicate tool "add"'),
    ("responses", {"tools": [{"type": "web_search"}]}, 400, 'tools[0].type: must be "function", got web_'),
    ("responses", {"tool_choice": "required"}, 400, 'tool_choice: "required" needs tools'),
    ("responses", {"background": True}, 400, "background: background responses are not supported"),
    ("responses", {"previous_response_id": "resp_1"}, 404, "there is no response resp_1"),
    ("messages", {"model": "claude"}, 404, "The model `claude` does not exist"),
    ("messages", {"messages": [*HI, USE, *HI]}, 400, "messages[1]: the call c has no result; add its result"),
    ("messages", {"messages": [RESULT]}, 400, "messages[0]: no earlier message has the call c of this"),
    ("messages", {"messages": [*HI, {"role": "assistant", "content": "so"}]}, 400, "message is from the assistant"),
    ("messages", {"max_tokens": None}, 400, "max_tokens: Field required"),
    ("messages", {"temperature": 1.5}, 400, "temperature: must be from 0 to 1, got 1.5"),
    ("messages", {"tools": [ANTHROPIC, ANTHROPIC]}, 400, 'duplicate tool "add"'),
    ("messages", {"tool_choice": {"type": "tool", "name": "add"}}, 400, "is not among the tools"),
    ("messages", {"system": 5}, 400, "system: expected a list, got 5"),
    ("messages", {"mcp_servers": []}, 400, "mcp_servers: tools are called by the client"),
    ("completions", {"best_of": 2}, 400, "best_of: answers that are sampled and not returned cannot be recorded"),
    ("completions", {"echo": True}, 400, "echo: the client has the prompt"),
    ("completions", {"prompt": []}, 400, "prompt: expected one nonempty text or list of token ids"),
    ("completions", {"prompt": ["a", "b"]}, 400, "prompt: expected one nonempty text"),
    ("completions", {"prompt": [1, 10**9]}, 400, "prompt: no token 1000000000; there are"),
    ("completions", {"logprobs": 6}, 400, "logprobs: must be from 0 to 5, got 6"),
]  # fmt: skip
ASKED = {"responses": {"input": "hi"}, "messages": {"messages": HI, "max_tokens": 4}, "completions": {"prompt": "hi"}}


def test_invalid_request_is_refused_in_the_format_of_each_api(assembly):
    async def work(served):
        results = []
        async with served.http() as http:
            for path, more, _, _ in REFUSED:
                options = {"model": "tiny", **ASKED[path], **more}
                results.append(await http.post(f"/v1/{path}", json=options))
                results.append(await http.post(f"/v1/{path}", json={**options, "stream": True}))
            far = await http.post("/v1/messages", content=b"{" + b" " * (17 << 20))
            for path in ("messages", "responses"):
                results.append(await http.post(f"/v1/{path}", content=b'{"model": 1e999}'))
        return results, far

    results, far = played(assembly, work)
    expected = [each for each in REFUSED for _ in range(2)]
    for answer, (path, _, status, words) in zip(results, expected, strict=False):
        error = answer.json()["error"]
        assert (answer.status_code, words in error["message"]) == (status, True), error
        shape = {"type", "message"} if path == "messages" else {"message", "type", "param", "code"}
        assert set(error) == shape
    assert [answer.status_code for answer in results[-2:]] == [400, 400]
    assert (far.status_code, far.json()["error"]["type"]) == (413, "request_too_large")


SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


def test_response_constrained_by_a_schema_follows_it_and_is_recorded_as_sampled(assembly):
    pytest.importorskip("llguidance")
    format = {"type": "json_schema", "schema": SCHEMA}

    async def work(served):
        client = served.client()
        options = {"model": "tiny", "seed": 3, "messages": HI}
        shaped = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        complete = await client.chat.completions.create(**options, response_format=shaped)
        pieces = [p async for p in await client.chat.completions.create(**options, response_format=shaped, stream=True)]
        streamed = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
        response = await client.responses.create(model="tiny", input="hi", text={"format": {**format, "name": "x"}})
        message = await served.anthropic().messages.create(
            model="tiny", messages=HI, max_tokens=99, output_config={"format": format}
        )
        texts = [complete.choices[0].message.content, streamed, response.output_text, message.content[0].text]
        return texts, [episode.answers[0].action for episode in served.episodes]

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


def test_engine_without_constraints_or_alternatives_is_reported(assembly):
    class Server(Scripted):
        def __init__(self, *lines):
            super().__init__(assembly, *lines)
            self.capabilities = EngineCapabilities(constraints=False, top_logprobs=False)

    async def work(served):
        client, options = served.client(), {"model": "tiny", "messages": HI}
        with pytest.raises(
            openai.BadRequestError, match="this engine cannot constrain sampling; ask for it in a message"
        ):
            await client.chat.completions.create(**options, response_format={"type": "json_object"})
        with pytest.raises(openai.BadRequestError, match="this engine returns log-probs of sampled tokens only"):
            await client.chat.completions.create(**options, logprobs=True, top_logprobs=2)

    played(assembly, work, engine=Server())


@pytest.mark.parametrize("schema", [{"type": "nothing"}, {"$ref": "#/nowhere"}, {"type": "object", "not": {}}])
def test_unsupported_schema_is_refused(assembly, schema):
    pytest.importorskip("llguidance")

    async def work(served):
        with pytest.raises(openai.BadRequestError, match="response_format"):
            await served.client().chat.completions.create(
                model="tiny",
                messages=HI,
                response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
            )

    played(assembly, work)
