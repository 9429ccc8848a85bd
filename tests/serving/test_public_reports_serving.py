"""Faults that users of other projects reported for OpenAI-compatible servers; see `public_reports.md`."""

import asyncio
import json

import pytest

from support.served_policy import HI, TOOL, Scripted, build_assembly, called, played
from whetstone.chat import Message, Text

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
FLAT = {"type": "function", **TOOL["function"]}
ANTHROPIC = {"name": "add", "description": "Adds.", "input_schema": TOOL["function"]["parameters"]}
BODIES = {
    CHAT: {"model": "tiny", "messages": HI, "max_tokens": 4},
    RESPONSES: {"model": "tiny", "input": HI, "max_output_tokens": 4},
    MESSAGES: {"model": "tiny", "messages": HI, "max_tokens": 4},
}


@pytest.fixture(scope="module")
def assembly():
    return build_assembly()


def line(text, message=None):
    return Message("assistant", (Text(text),) if text else (), message.tool_calls if message else ())


def post(assembly, path, body, **options):
    async def work(served):
        async with served.http() as http:
            answer = await http.post(path, json=body)
            return answer.status_code, answer.text

    return played(assembly, work, **options)


def events_of(text):
    return [json.loads(part[6:]) for part in text.splitlines() if part.startswith("data: ") and part != "data: [DONE]"]


@pytest.mark.parametrize(
    ("options", "is_reported"),
    [({}, False), (None, False), ({"include_usage": False}, False), ({"include_usage": True}, True)],
)
def test_a_stream_reports_usage_only_if_requested(assembly, options, is_reported):
    """Check report 31."""
    body = {**BODIES[CHAT], "stream": True, "stream_options": options}
    status, text = post(assembly, CHAT, body, engine=Scripted(assembly, line("five")))
    assert status == 200, text
    assert [event for event in events_of(text) if event.get("usage")] == events_of(text)[-1:] * is_reported


def test_streamed_items_have_the_ids_of_the_completed_response(assembly):
    """Check report 32: two calls and text."""
    calls = (*called(a=1, b=2).tool_calls, *called(a=3, b=4).tool_calls)
    message = Message("assistant", (Text("both: "),), calls)
    body = {"model": "tiny", "input": HI, "tools": [FLAT], "stream": True}
    status, text = post(assembly, RESPONSES, body, engine=Scripted(assembly, message))
    assert status == 200, text
    events = events_of(text)
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    (completed,) = [event["response"] for event in events if event["type"] == "response.completed"]
    assert done == completed["output"]
    assert [item["type"] for item in done] == ["message", "function_call", "function_call"]
    for key in ("id", "call_id"):
        assert [item.get(key) for item in added] == [item.get(key) for item in done]
    known = {item["id"]: place for place, item in enumerate(done)}
    for event in events:
        if "item_id" in event:
            assert known[event["item_id"]] == event["output_index"]
    assert len(known) == 3
    streamed = [event["arguments"] for event in events if event["type"] == "response.function_call_arguments.done"]
    assert streamed == [item["arguments"] for item in done[1:]]


def test_alternatives_that_are_parts_of_a_character_have_bytes(assembly):
    """Check report 33: the tokenizer is byte-level, so most alternatives are parts of characters."""
    body = {**BODIES[CHAT], "max_tokens": 12, "logprobs": True, "top_logprobs": 20, "temperature": 1.0}
    status, text = post(assembly, CHAT, body)
    if status == 400:
        pytest.skip(json.loads(text)["error"]["message"])
    content = json.loads(text)["choices"][0]["logprobs"]["content"]
    assert content
    for place in content:
        assert len(place["top_logprobs"]) == 20
        for one in [place, *place["top_logprobs"]]:
            assert one["token"], one
            assert one["bytes"], one
            assert bytes(one["bytes"]).decode(errors="replace") == one["token"]


CALLED = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}]
PARTS_OF_RESULT = [{"type": "text", "text": "5"}]
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "5"}


@pytest.mark.parametrize(
    "middle",
    [
        [{"role": "assistant", "content": None, "tool_calls": CALLED}, RESULT],
        [{"role": "assistant", "tool_calls": CALLED}, RESULT],
        [{"role": "assistant", "content": [], "tool_calls": CALLED}, RESULT],
        [{"role": "assistant", "content": "", "tool_calls": CALLED}, {**RESULT, "content": PARTS_OF_RESULT}],
        [{"role": "assistant", "content": "five", "tool_calls": []}],
        [{"role": "assistant", "content": "five", "tool_calls": None, "refusal": None, "audio": None}],
        [{"role": "assistant", "content": ""}],
    ],
)  # fmt: skip
def test_histories_of_other_clients_are_accepted(assembly, middle):
    """Check reports 34 and 35."""
    history = [*HI, *middle, {"role": "user", "content": "and now?"}]
    body = {**BODIES[CHAT], "messages": history, "tools": [TOOL]}
    status, text = post(assembly, CHAT, body, engine=Scripted(assembly, line("six")))
    assert status == 200, text


@pytest.mark.parametrize(
    "value",
    [
        {"type": "json_schema"},
        {"type": "json_schema", "schema": {"type": "object"}},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": []}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objekt"}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"pattern": "("}}},
        {"type": ["text"]},
        {},
        "json",
        7,
    ],
)
def test_a_malformed_response_format_is_the_clients_error(assembly, value):
    """Check report 36."""
    status, text = post(assembly, CHAT, {**BODIES[CHAT], "response_format": value})
    if status == 200:  # a schema that is none may be accepted only if it constrains nothing
        assert value == {}
        return
    assert 400 <= status < 500, text
    assert "response_format" in json.loads(text)["error"]["message"] or json.loads(text)["error"]["param"]


MALFORMED = [
    [{"type": "function"}],
    [{"type": "banana", "function": {"name": "f", "parameters": {}}, "name": "f"}],
    [{"type": "function", "function": "nope"}],
    [{"type": "function", "function": {"name": 3}, "name": 3}],
    [{"function": {"name": "f", "parameters": [0]}, "name": "f", "parameters": [0], "input_schema": 0}],
    [{"type": "function", "function": {"name": ""}, "name": "", "input_schema": {}}],
    ["add"],
    {"add": 1},
    "add",
    7,
]  # fmt: skip


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize("tools", MALFORMED, ids=[str(number) for number in range(len(MALFORMED))])
def test_malformed_tools_are_the_clients_error(assembly, path, tools):
    """Check report 37."""
    status, text = post(assembly, path, {**BODIES[path], "tools": tools})
    assert 400 <= status < 500, text
    assert "\n" not in json.loads(text)["error"]["message"]


@pytest.mark.parametrize("counts", [[1], [3, 4]])
def test_abandoned_stream_changes_nothing_for_the_next_request(assembly, counts):
    """Check report 38: the same request again in the same episode, then the next turn."""
    body = {"model": "tiny", "messages": HI, "max_tokens": 30, "stream": True, "seed": 3}

    async def work(served):
        async def leave(count):
            """Read this many messages of the stream, then disconnect."""
            parts, left = [], asyncio.Event()

            async def receive():
                if not parts:
                    parts.append(True)
                    return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
                await left.wait()
                return {"type": "http.disconnect"}

            async def send(message):
                parts.append(message)
                if len(parts) > count:
                    left.set()
                    await asyncio.sleep(0)

            path = "/episodes/e1/v1/chat/completions"
            headers = [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(json.dumps(body))).encode()),
            ]
            scope = {
                "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
                "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers,
                "server": ("localhost", 80), "client": ("127.0.0.1", 1), "root_path": "",
            }  # fmt: skip
            await asyncio.wait_for(served.app(scope, receive, send), 30)

        for count in counts:
            await leave(count)
        return await ask_two_turns(served)

    got = played(assembly, work)
    expected = played(assembly, ask_two_turns)
    assert got[:2] == expected[:2]
    assert set(expected[2]) <= set(got[2])


async def ask_two_turns(served):
    """Play two turns of one episode; return (texts, tokens of the last prompt, ids of each turn)."""
    texts, history = [], list(HI)
    client = served.client(path="/episodes/e1")
    for turn in range(2):
        response = await client.chat.completions.create(model="tiny", messages=history, max_tokens=30, seed=3 + turn)
        texts.append(response.choices[0].message.content)
        history += [{"role": "assistant", "content": texts[-1]}, {"role": "user", "content": "and now?"}]
    (episode,) = served.episodes
    return texts, response.usage.prompt_tokens, [turn.action.ids for turn in episode.build_trajectory().turns]


@pytest.mark.parametrize("text", ["", "Let me see. "])
def test_response_truncated_anywhere_is_the_same_streamed_and_complete(assembly, text):
    """Check report 39: every length up to the complete call."""
    message = line(text, called(a=12, b=3))
    count = len(assembly.chat.write(message, ()))

    async def work(served):
        client, pairs = served.client(), []
        for most in range(1, count + 1):
            body = {"model": "tiny", "messages": HI, "tools": [TOOL], "max_tokens": most}
            complete = (await client.chat.completions.create(**body)).choices[0]
            pieces = [piece async for piece in await client.chat.completions.create(**body, stream=True)]
            deltas = [piece.choices[0].delta for piece in pieces if piece.choices]
            reasons = [p.choices[0].finish_reason for p in pieces if p.choices and p.choices[0].finish_reason]
            calls = [call for delta in deltas for call in delta.tool_calls or ()]
            streamed = (
                "".join(delta.content or "" for delta in deltas).strip(),
                "".join(c.function.arguments or "" for c in calls),
                reasons,
            )
            at_once = (
                (complete.message.content or "").strip(),
                "".join(call.function.arguments for call in complete.message.tool_calls or ()),
                [complete.finish_reason],
            )
            pairs.append((most, streamed, at_once))
        return pairs

    for most, streamed, at_once in played(assembly, work, engine=Scripted(assembly, *[message] * (2 * count))):
        assert streamed == at_once, most
        content, arguments, (reason,) = at_once
        assert reason == ("length" if most < count else "tool_calls"), (most, at_once)
        assert "<tool_call" not in content, (most, content)
        assert not arguments or json.loads(arguments) == {"a": 12, "b": 3}


PARTS = [
    [{"type": "tool_reference", "tool_name": "list_files"}],
    [{"type": "text", "text": "5"}, {"type": "tool_reference", "tool_name": "x"}],
    [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "5"}}],
    [{"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "5"}]}],
    [{"type": 3}],
    ["5"],
    {"text": "5"},
    7,
]


@pytest.mark.parametrize("content", PARTS, ids=[str(number) for number in range(len(PARTS))])
def test_an_unknown_part_of_a_tool_result_is_read_or_refused_with_its_place(assembly, content):
    """Check report 40."""
    history = [
        *HI,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 2, "b": 3}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": content}]},
    ]
    body = {**BODIES[MESSAGES], "messages": history, "tools": [ANTHROPIC]}
    status, text = post(assembly, MESSAGES, body, engine=Scripted(assembly, line("five")))
    assert status < 500, text
    if status != 200:
        assert "messages" in json.loads(text)["error"]["message"], text
