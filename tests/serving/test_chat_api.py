"""Responses of a policy to the official OpenAI client, and the recorded episodes."""

import json
import math

import openai
import pytest

from support.served_policy import HI, TOOL, Scripted, build_assembly, called, played
from whetstone.chat import Message, ToolSpec, tool_result, user
from whetstone.inference import GenerateRequest, Sampling
from whetstone.seeding import derive_seed
from whetstone.serving import Keys
from whetstone.serving.api_keys import Key, hash_key
from whetstone.trajectory import Author, TokenSequence


@pytest.fixture(scope="module")
def assembly():
    return build_assembly()


def test_tokens_of_an_agents_episode_are_those_of_the_native_loop(assembly):
    """Compare the same prompts and seeds through the client and through the engine, each turn after the sampled
    tokens."""

    async def by_client(served):
        client, messages = served.client(), list(HI)
        for turn in range(3):
            recorded = await client.chat.completions.create(
                model="tiny", messages=messages, tools=[TOOL], max_tokens=12, seed=turn
            )
            message = recorded.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "5"} for call in message.tool_calls or ()]
            messages.append({"role": "user", "content": "and now?"})
        (episode,) = served.episodes
        return episode.build_trajectory()

    async def by_hand(served):

        chat, tools = assembly.chat, (ToolSpec.from_openai(TOOL),)
        context, spans, turns = chat.open([user("Compute 2+3")], tools), [], []
        for turn in range(3):
            generated = await served.engine.generate(
                GenerateRequest(
                    TokenSequence(context.ids),
                    Sampling(12, stop_ids=chat.stop_ids, seed=turn),
                    "x",
                    sampled_spans=tuple(spans),
                )
            )
            turns.append((context.new.ids, generated.tokens, generated.logprobs))
            spans.append((len(context.ids), len(context.ids) + len(generated.tokens)))
            calls = chat.read(generated.tokens, tools, turn=turn).tool_calls
            context = chat.extend(
                context, generated.tokens, [*(tool_result("5", call_id=c.id) for c in calls), user("and now?")]
            )
            assert not context.opens_segment
        return turns

    recorded, native = played(assembly, by_client), played(assembly, by_hand)
    assert [(turn.context.ids, turn.action.ids, turn.action.logprobs) for turn in recorded.turns] == native
    assert len(recorded.segments()) == 1


@pytest.mark.parametrize("lines", [["five is it"], ["<think>two and three</think>five"], [called(a=2, b=3)]])
def test_streamed_response_equals_the_complete_one(assembly, lines):
    async def at_once(served):
        return await served.client().chat.completions.create(model="tiny", messages=HI, tools=[TOOL], seed=1)

    async def streamed(served):
        pieces = await served.client().chat.completions.create(
            model="tiny", messages=HI, tools=[TOOL], seed=1, stream=True, stream_options={"include_usage": True}
        )
        return [piece async for piece in pieces]

    written = [line if isinstance(line, Message) else Message("assistant", user(line).content) for line in lines]
    complete = played(assembly, at_once, engine=Scripted(assembly, *written))
    pieces = played(assembly, streamed, engine=Scripted(assembly, *written))
    text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
    assert text.strip() == (complete.choices[0].message.content or "").strip()
    calls = [call for p in pieces if p.choices for call in p.choices[0].delta.tool_calls or ()]
    expected = complete.choices[0].message.tool_calls or []
    assert [(c.function.name, c.function.arguments) for c in calls] == [
        (c.function.name, c.function.arguments) for c in expected
    ]
    assert [p.choices[0].finish_reason for p in pieces if p.choices][-1] == complete.choices[0].finish_reason
    assert pieces[-1].usage == complete.usage
    assert "<" not in text


def test_partial_call_marker_is_never_streamed(assembly):
    async def streamed(served):
        pieces = await served.client().chat.completions.create(model="tiny", messages=HI, tools=[TOOL], stream=True)
        return [p.choices[0].delta.content async for p in pieces if p.choices]

    message = Message("assistant", user("a < b, so: ").content, called(a=1, b=2).tool_calls)
    streamed_text = played(assembly, streamed, engine=Scripted(assembly, message))
    assert "".join(filter(None, streamed_text)).strip() == "a < b, so:"


def test_truncated_history_starts_a_segment_and_trains_no_token_twice(assembly):
    async def work(served):
        client = served.client(path="/episodes/e1")
        first = await client.chat.completions.create(model="tiny", messages=HI)
        answer = {"role": "assistant", "content": first.choices[0].message.content}
        await client.chat.completions.create(model="tiny", messages=[*HI, answer, *HI])
        await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "in short"}])
        await client.chat.completions.create(model="tiny", messages=[*HI, answer, {"role": "user", "content": "else"}])
        (episode,) = served.episodes
        return episode.build_trajectory()

    lines = [Message("assistant", user(text).content) for text in ("one", "two", "three", "four")]
    trajectory = played(assembly, work, engine=Scripted(assembly, *lines))
    assert [turn.message.text for turn in trajectory.turns] == ["one", "two", "four", "three"]
    assert [turn.opens_segment for turn in trajectory.turns] == [True, False, True, True]
    generated = sum(sum(segment.action_mask) for segment in trajectory.segments())
    assert generated == sum(len(turn.action) for turn in trajectory.turns)
    assert all(set(turn.context.authors) == {Author.ENVIRONMENT} for turn in trajectory.turns)


def test_unnamed_episode_is_identified_by_its_messages(assembly):
    async def work(served):
        client = served.client()
        for _ in range(2):
            await client.chat.completions.create(model="tiny", messages=HI)
        answer = {"role": "assistant", "content": "one"}
        for text in ("a", "b"):
            await client.chat.completions.create(
                model="tiny", messages=[*HI, answer, {"role": "user", "content": text}]
            )
        return [[answer.message.text for answer in each.answers] for each in served.episodes]

    lines = [Message("assistant", user(text).content) for text in ("one", "one", "two", "three")]
    assert sorted(played(assembly, work, engine=Scripted(assembly, *lines))) == [["one", "three"], ["one", "two"]]


def test_choices_of_a_response_are_siblings_with_different_seeds(assembly):
    async def work(served):
        response = await served.client().chat.completions.create(model="tiny", messages=HI, n=3, max_tokens=8, seed=5)
        (episode,) = served.episodes
        return response, episode.build_trajectory()

    response, trajectory = played(assembly, work)
    assert [choice.index for choice in response.choices] == [0, 1, 2]
    assert len({turn.action.ids for turn in trajectory.turns}) == 3
    assert all(turn.opens_segment for turn in trajectory.turns)
    assert response.usage.completion_tokens == sum(len(turn.action) for turn in trajectory.turns)


def test_log_probs_are_those_of_the_sampled_tokens(assembly):
    async def work(served):
        response = await served.client().chat.completions.create(
            model="tiny", messages=HI, max_tokens=6, logprobs=True, seed=2
        )
        (episode,) = served.episodes
        return response.choices[0].logprobs.content, episode.answers[0].action

    response, action = played(assembly, work)
    assert [piece.logprob for piece in response] == pytest.approx(list(action.logprobs), abs=1e-5)


def test_required_call_starts_with_tokens_that_are_forced_and_not_trained(assembly):
    async def work(served):
        choice = {"type": "function", "function": {"name": "add"}}
        await served.client().chat.completions.create(
            model="tiny", messages=HI, tools=[TOOL], tool_choice=choice, max_tokens=40
        )
        (episode,) = served.episodes
        return episode.answers[0].action

    action = played(assembly, work)
    forced = [author is Author.INSERTED for author in action.authors]
    start = assembly.chat.tokenizer.decode(action.ids[: forced.index(False)])
    assert start.startswith("<tool_call>")
    assert '"add"' in start
    assert [math.isnan(p) for p in action.logprobs] == forced


def test_turn_of_one_call_ends_after_it(assembly):
    two = Message("assistant", (), (*called(a=1, b=2).tool_calls, *called(a=3, b=4).tool_calls))

    async def work(served):
        return await served.client().chat.completions.create(
            model="tiny", messages=HI, tools=[TOOL], parallel_tool_calls=False
        )

    result = played(assembly, work, engine=Scripted(assembly, two))
    assert [json.loads(call.function.arguments) for call in result.choices[0].message.tool_calls] == [{"a": 1, "b": 2}]


def test_stop_sequence_ends_the_response_before_it(assembly):
    async def work(served):
        response = await served.client().chat.completions.create(model="tiny", messages=HI, stop=["three"], stream=True)
        return "".join([p.choices[0].delta.content or "" async for p in response if p.choices])

    line = Message("assistant", user("one two three four").content)
    assert played(assembly, work, engine=Scripted(assembly, line)) == "one two "


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model": "gpt"}, "The model `gpt` does not exist; this server has `tiny`: send it as `model`, or start"),
        ({"best_of": 2}, "best_of: answers that are sampled and not returned cannot be recorded"),
        ({"n": 0}, "n: must be from 1 to 128, got 0"),
        ({"temperature": 3}, "temperature: must be from 0 to 2, got 3"),
        ({"messages": []}, "messages: expected a list of at least one message, got []"),
        (
            {"messages": [{"role": "tool", "tool_call_id": "c", "content": "5"}]},
            "messages[0]: no earlier message has the call c of this result",
        ),
        ({"messages": [*HI, {"role": "assistant", "content": "5"}]}, "the last message is from the assistant"),
        ({"messages": [{"role": "user", "content": "long " * 2000}]}, "maximum context length is 768 tokens"),
        ({"tools": [TOOL, TOOL]}, 'duplicate tool "add"'),
        ({"tool_choice": "required"}, 'tool_choice: "required" needs tools'),
        ({"top_logprobs": 5}, "top_logprobs: requires `logprobs: true`"),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type: must be text, json_object or json_schema, got xml",
        ),
        ({"response_format": {"type": "json_object"}, "tools": [TOOL]}, "cannot be combined with tools"),
        ({"logit_bias": {"100000": 1}}, "logit_bias: no token 100000; there are"),
        (
            {
                "messages": [
                    *HI,
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
                    },
                    *HI,
                ]
            },
            "messages[1]: the call c has no result; add its result",
        ),
        ({"max_tokens": "many"}, "max_tokens: must be 1 or more, got many"),
        ({"messages": "hello"}, "messages: expected a list of at least one message, got hello"),
    ],
)
def test_invalid_request_is_refused_in_the_format_of_the_api(assembly, more, message):
    async def work(served):
        async with served.http() as http:
            answer = await http.post("/v1/chat/completions", json={"model": "tiny", "messages": HI, **more})
            return answer.status_code, answer.json()["error"]

    status, error = played(assembly, work)
    assert status in (400, 404)
    assert message in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_reward_ends_an_episode_once(assembly):
    async def work(served):
        async with served.http() as http:
            body = {"model": "tiny", "messages": HI, "max_tokens": 4}
            await http.post("/episodes/e1/v1/chat/completions", json=body, headers={"x-whetstone-task": "sum"})
            paid = [
                await http.post(f"/v1/episodes/{id}/reward", json=reward)
                for id, reward in (
                    ("e1", {"turn": 0, "reward": 0.5}), ("e1", {"turn": 3, "reward": 1}), ("e1", {"reward": "much"}),
                    ("e2", {"reward": 1}), ("e1", {"reward": 1}), ("e1", {"reward": 0}),
                )
            ]  # fmt: skip
            repeated = await http.post("/episodes/e1/v1/chat/completions", json=body)
        return [answer.status_code for answer in (*paid, repeated)], served.over

    status, (episode,) = played(assembly, work)
    assert status == [200, 400, 400, 404, 200, 409, 409]
    assert (episode.score.value, episode.turns[0].reward, episode.task_id) == (1.0, 0.5, "sum")


def test_key_cannot_access_episodes_of_another(assembly):
    keys = Keys({hash_key(name): Key(name, hash_key(name), role) for name, role in
                 (("a", "reward"), ("b", "reward"), ("c", "use"), ("root", "admin"))})  # fmt: skip

    async def work(served):
        chat, e1, paid = "/episodes/{}/v1/chat/completions", "/v1/episodes/e1", "/v1/episodes/{}/reward"
        body, reward = {"model": "tiny", "messages": HI, "max_tokens": 4}, {"reward": 1}
        requests = (
            (chat.format("e1"), "a", body), (e1, "b", None), (paid.format("e1"), "b", reward),
            (chat.format("e1"), "b", body), (paid.format("e1"), "b", reward), (e1, "root", None), (e1, "wrong", None),
            (e1, "", None),
            (chat.format("e2"), "c", body), (paid.format("e2"), "c", reward),
        )  # fmt: skip
        async with served.http() as http:
            statuses = []
            for path, key, payload in requests:
                headers = {"authorization": f"Bearer {key}"} if key else {}
                asking = http.post(path, json=payload, headers=headers) if payload else http.get(path, headers=headers)
                statuses.append((await asking).status_code)
        return statuses

    assert played(assembly, work, keys=keys) == [200, 404, 404, 200, 200, 200, 401, 401, 200, 403]


def test_rate_limited_client_is_told_to_wait(assembly):
    keys = Keys({hash_key("a"): Key("a", hash_key("a"), requests_a_minute=2)})

    async def work(served):
        client = served.client(key="a")
        for _ in range(2):
            await client.chat.completions.create(model="tiny", messages=HI, max_tokens=2)
        with pytest.raises(openai.RateLimitError, match="2 requests per minute"):
            await client.chat.completions.create(model="tiny", messages=HI, max_tokens=2)

    played(assembly, work, keys=keys)


def test_unset_seed_differs_in_each_request(assembly):
    async def work(served):
        client = served.client()
        response = [await client.chat.completions.create(model="tiny", messages=HI, max_tokens=8) for _ in range(2)]
        return [each.choices[0].message.content for each in response]

    one, other = played(assembly, work)
    assert one != other
    assert derive_seed(0, "request", 1) != derive_seed(0, "request", 2)
