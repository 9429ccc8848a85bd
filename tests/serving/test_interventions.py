"""Interventions: a person's message replaces a response of the policy; its tokens, records and training."""

import asyncio
import json
import math

import pytest
import torch
from click.testing import CliRunner

from support.live_serving import LiveServed, live_recipe
from support.served_policy import TOOL, build_assembly, played
from whetstone.algorithms.objectives.preference import dpo
from whetstone.chat import assistant, user
from whetstone.cli.why import why_command
from whetstone.record.run_directory import open_run_directory
from whetstone.serving import Key, Keys
from whetstone.serving.api_keys import hash_key
from whetstone.serving.online.feedback_credit import dpo_weights, standardize_rewards
from whetstone.trajectory import Author

ASKED = {"role": "user", "content": "Name a letter."}


async def request_answer(http, episode, messages, *, seed=0, tools=()):
    """Return the next response of the policy as a message."""
    body = {"model": "tiny", "messages": messages, "max_tokens": 4, "seed": seed}
    body |= {"tools": list(tools)} if tools else {}
    answer = await http.post(f"/episodes/{episode}/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


async def post(http, path, **body):
    """Send a POST request; return (status, body)."""
    answer = await http.post(path, json=body)
    return answer.status_code, answer.json()


async def take_over(http, episode, content="It is B.", **more):
    """Start an episode, replace its first response, and return the messages."""
    await request_answer(http, episode, [ASKED])
    status, response = await post(
        http, f"/v1/episodes/{episode}/take-over", message={"content": content}, by="Ada", **more
    )
    assert status == 200, response
    return [ASKED, response["message"]]


def with_live(folder, work, *overrides, **options):
    """Return the result of `work`, called with a server that learns."""

    async def run():
        async with LiveServed(folder, live_recipe(*overrides), **options) as served:
            return await work(served)

    return asyncio.run(run())


def test_episode_continues_after_an_intervention_in_the_tokens_of_a_sampled_response(tmp_path):
    async def work(served):
        http, chat = served.http(), served.assembly.chat
        messages = await take_over(http, "e")
        await request_answer(http, "e", [*messages, {"role": "user", "content": "And then?"}], seed=5)
        (episode,) = served.episodes
        policy, person, then = episode.answers
        assert person.message.text == "It is B."
        assert person.action.ids == chat.write(person.message, ())
        assert set(person.action.authors) == {Author.EXPERT}
        assert all(map(math.isnan, person.action.logprobs))
        assert (person.by, policy.replaced, policy.by) == ("Ada", person, "")
        assert person.at > 0
        assert then.context.ids[: len(policy.context.ids)] == policy.context.ids
        assert then.context.ids[len(policy.context.ids) :][: len(person.action)] == person.action.ids
        assert set(policy.action.authors) == {Author.POLICY}

    with_live(tmp_path, work)


def test_replaced_response_is_recorded_with_reward_minus_one():
    async def work(served):
        messages = await take_over(served.http(), "e")
        await request_answer(served.http(), "e", [*messages, {"role": "user", "content": "And then?"}], seed=5)
        await post(served.http(), "/v1/episodes/e/reward", reward=1.0)
        return served.over

    episode, replaced = played(build_assembly(), work)
    assert (episode.marks, replaced.marks) == (("intervened",), ("replaced",))
    assert episode.turns[0].message.text == "It is B."
    assert [set(turn.action.authors) for turn in episode.turns] == [{Author.EXPERT}, {Author.POLICY}]
    assert len(episode.segments()) == 1  # the person's message is trained in one sequence with later turns
    assert (episode.score.value, replaced.score.value) == (1.0, -1.0)
    assert replaced.task_id == episode.task_id
    (turn,) = replaced.turns
    assert turn.context.ids == episode.turns[0].context.ids
    assert not any(map(math.isnan, turn.action.logprobs))


def test_tool_call_is_replaced_and_its_result_continues(tmp_path):
    async def work(served):
        http = served.http()
        await request_answer(http, "e", [ASKED], tools=[TOOL])
        call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
        status, response = await post(http, "/v1/episodes/e/take-over", message={"content": None, "tool_calls": [call]})
        assert status == 200
        (call_,) = response["message"]["tool_calls"]
        assert call_["function"] == call["function"]
        result = {"role": "tool", "tool_call_id": call_["id"], "content": "3"}
        await request_answer(http, "e", [ASKED, response["message"], result], tools=[TOOL])
        (episode,) = served.episodes
        assert episode.answers[2].before is episode.answers[1]
        conversation = (await http.get("/v1/episodes/e/conversation")).json()
        assert [message["role"] for message in conversation["messages"]] == ["user", "assistant", "tool", "assistant"]
        assert [answer["replaced_by"] for answer in conversation["answers"]] == [1, None, None]
        assert [answer["by"] for answer in conversation["answers"]] == ["", "somebody", ""]

    with_live(tmp_path, work)


@pytest.mark.parametrize(
    ("learned_as", "expected"),
    [
        ("demonstration", [("It is B.", 1.0, {Author.EXPERT}, True)]),
        ("preference", [("It is B.", 1.0, {Author.EXPERT}, True)]),
        ("reward", [(None, -1.0, {Author.POLICY}, True)]),
        ("none", []),
    ],
)
def test_recipe_selects_how_interventions_are_trained(tmp_path, learned_as, expected):
    async def work(served):
        messages = await take_over(served.http(), "e")
        own = served.episodes.get(Key("", "", "admin"), "e").answers[0].message.text
        await request_answer(served.http(), "e", [*messages, {"role": "user", "content": "And then?"}], seed=5)
        turns = served.live.turns.get_turns(range(served.live.turns.next))
        recorded = []
        for turn in turns:
            (learned,) = turn.trajectory.turns
            (other,) = turn.intervention.other.turns
            assert {learned.message.text, other.message.text} == {own, "It is B."}
            assert learned.context.ids == other.context.ids
            assert turn.intervention.by == "Ada"
            recorded.append((learned.message.text, turn.feedback.reward, set(learned.action.authors), turn.to_json()))
        wanted = [(own if text is None else text, *rest) for text, *rest in expected]
        assert [each[:3] for each in recorded] == [each[:3] for each in wanted]
        scores = [[each.score.value for each in turn.build_group(reward_weight=1.0).trajectories] for turn in turns]
        assert scores == {"demonstration": [[1.0]], "preference": [[1.0, -1.0]], "reward": [[-1.0, 0.0]]}.get(
            learned_as, []
        )

    with_live(tmp_path, work, f"live.intervention={learned_as}", "live.turns_per_update=50")


@pytest.mark.parametrize("learned_as", ["demonstration", "preference", "reward"])
def test_intervention_becomes_more_likely_and_can_be_unlearned(tmp_path, learned_as):
    overrides = (f"live.intervention={learned_as}", "live.turns_per_update=1", "live.hint_weight=0")

    async def work(served):
        before = served.weights()
        likely = answer_logprob(served, "B")
        for number in range(4):
            await take_over(served.http(), f"e{number}", "B")
            await served.settled()
        assert answer_logprob(served, "B") > likely + 0.5
        for number in range(4):
            assert (await served.admin_request("POST", f"/episodes/e{number}/unlearn"))[0] == 200
        await served.settled()
        assert served.weights() == before
        assert not any(b"Ada" in path.read_bytes() for path in (tmp_path / "live").rglob("*.jsonl"))

    with_live(tmp_path, work, *overrides)


def answer_logprob(served, text):
    """Return the log-probability of a response to the question, including the end of turn."""
    chat = served.assembly.chat
    context, ids = chat.open([user(ASKED["content"])], ()).ids, chat.write(assistant(text), ())
    with torch.no_grad():
        logits = served.assembly.policy.model(torch.tensor([[*context, *ids]])).logits[0].log_softmax(-1)
    return sum(logits[len(context) - 1 + place, token].item() for place, token in enumerate(ids))


def test_with_interventions_as_the_reward_watched_responses_are_0_and_unwatched_have_none(tmp_path):
    async def work(served):
        http = served.http()
        for name in ("watched", "alone"):
            messages = [ASKED, await request_answer(http, name, [ASKED])]
            if name == "watched":
                assert (await post(http, f"/v1/episodes/{name}/watch", by="Ada"))[0] == 200
            await request_answer(http, name, [*messages, {"role": "user", "content": "And then?"}], seed=5)
            await post(http, f"/v1/episodes/{name}/take-over", message={"content": "B"}, by="Ada")
        served.episodes.close()
        turns = served.live.turns.get_turns(range(served.live.turns.next))
        return [(turn.episode, turn.answer, turn.feedback.reward, turn.feedback.why) for turn in turns]

    assert with_live(tmp_path, work, "live.intervention=reward", "live.turns_per_update=50") == [
        ("watched", 0, 0.0, "accepted by Ada"),
        ("watched", 1, -1.0, "Ada took over: reward"),
        ("alone", 1, -1.0, "Ada took over: reward"),
    ]


def test_accepted_responses_are_trained_with_replaced_ones():
    assert standardize_rewards(torch.tensor([0.0, -1.0, -1.0, 0.0])).tolist() == pytest.approx([1, -1, -1, 1], abs=1e-5)
    assert standardize_rewards(torch.tensor([0.0, -1.0, 0.0, 0.0, 0.0])).tolist() == pytest.approx(
        [0.5, -2, *[0.5] * 3], abs=1e-5
    )
    assert standardize_rewards(torch.tensor([-1.0, -1.0])).tolist() == [0, 0]


def test_pair_weights_have_the_gradient_of_dpo():
    torch.manual_seed(0)
    beta, owner = 0.3, torch.tensor([0, 0, 1, 1, 1, 2])
    logprobs = torch.randn(6, dtype=torch.float64).requires_grad_()
    reference = torch.randn(6, dtype=torch.float64)
    rewards, group = torch.tensor([1.0, -1.0, 0.25]), torch.tensor([0, 0, 1])
    sums, of_reference = (torch.zeros(3, dtype=torch.float64).index_add(0, owner, x) for x in (logprobs, reference))
    pair, keys = slice(0, 2), torch.arange(2)
    of_dpo = dpo(sums[pair], of_reference[pair], rewards[pair], group[pair], keys, keys + 1, beta=beta)
    of_dpo.loss.backward()
    weights = dpo_weights(rewards, group, logprobs.detach(), reference, owner, beta=beta)
    assert torch.allclose(-beta * weights[owner][:5], logprobs.grad[:5])
    assert weights[2].item() == 0.25  # without a pair it counts by its reward


def test_invalid_intervention_is_refused_with_the_reason(tmp_path):
    async def work(served):
        http, over = served.http(), "/v1/episodes/e/take-over"
        own = await request_answer(http, "e", [ASKED])
        await request_answer(http, "e", [ASKED, own, {"role": "user", "content": "And then?"}], seed=5)
        last = served.episodes.get(Key("", "", "admin"), "e").answers[1].message.text
        for body, status, message in (
            ({"message": {"content": "B"}, "answer": 0}, 409, "the conversation has continued from it"),
            ({"message": {"content": "B"}, "answer": 7}, 400, "answer 7: the episode has 2 answers, from 0"),
            ({"message": {"content": "B"}, "answer": True}, 400, "answer True: the episode has 2 answers"),
            ({"message": {"content": "  "}}, 400, "has neither text nor tool calls"),
            ({"message": {"content": last}}, 400, "equals answer 1"),
            ({"message": {"role": "user", "content": "B"}}, 400, "must be a message of the assistant"),
            ({"message": "B"}, 400, "must be an object with content or tool_calls"),
            ({"message": {"content": "B " * 5000}}, 400, "the context length is"),
            ({"message": {"content": "B"}}, 200, ""),
            ({"message": {"content": "C"}, "answer": 1}, 409, "was taken over already"),
            ({"message": {"content": "C"}}, 409, "was taken over already"),
        ):
            received, response = await post(http, over, **body)
            assert (received, message in response.get("error", {}).get("message", "")) == (status, True), response
        assert (await post(http, "/v1/episodes/other/take-over", message={"content": "B"}))[0] == 404
        for name, body in (("x" * 201, {}), ("e", {"seconds": -1}), ("e", {"seconds": 1e9}), ("e", {"seconds": "x"})):
            assert (await post(http, f"/v1/episodes/{name}/watch", **body))[0] == 400

    with_live(tmp_path, work, "live.turns_per_update=50")


def test_rating_is_the_reward_of_a_response_and_its_note_the_hint(tmp_path):
    async def work(served):
        http = served.http()
        await request_answer(http, "e", [ASKED])
        rate = "/v1/episodes/e/rate"
        assert (await post(http, rate, note="Short answers.", by="Bo"))[0] == 200
        assert (await post(http, rate, rating=-1, note="It should be B.", by="Ada"))[0] == 200
        assert (await post(http, rate, rating=1, by="Bo"))[0] == 409
        assert (await post(http, rate))[0] == 400
        (turn,) = served.live.turns.get_turns([0])
        assert (turn.feedback.reward, turn.feedback.hint, turn.feedback.why) == (
            -1.0,
            "It should be B.",
            "rated by Ada",
        )
        conversation = (await http.get("/v1/episodes/e/conversation")).json()
        assert [(note["by"], note["note"], note["rating"]) for note in conversation["notes"]] == [
            ("Bo", "Short answers.", None),
            ("Ada", "It should be B.", -1.0),
        ]

    with_live(tmp_path, work, "live.turns_per_update=50")


def test_intervention_requires_the_right_to_reward_and_has_the_name_of_the_key(tmp_path):
    keys = Keys({hash_key(name): Key(name, hash_key(name), name) for name in ("use", "reward", "admin")})

    async def work(served):
        http = served.http()

        async def as_(key, path, **body):
            answer = await http.post(path, json=body, headers={"x-api-key": key})
            return answer.status_code

        ask = {"model": "tiny", "messages": [ASKED], "max_tokens": 2}
        over = {"message": {"content": "B"}, "by": "admin"}
        for key in ("use", "reward"):
            assert await as_(key, f"/episodes/of-{key}/v1/chat/completions", **ask) == 200
        assert await as_("use", "/v1/episodes/of-use/take-over", **over) == 403
        assert await as_("reward", "/v1/episodes/of-use/take-over", **over) == 404
        assert await as_("reward", "/v1/episodes/of-reward/take-over", **over) == 200
        assert await as_("admin", "/v1/episodes/of-use/take-over", **over) == 200
        assert await as_("nobody", "/v1/episodes/of-use/take-over", **over) == 401
        return [turn.intervention.by for turn in served.live.turns.get_turns([0, 1])]

    assert with_live(tmp_path, work, "live.turns_per_update=50", keys=keys) == ["reward", "admin"]


@pytest.mark.parametrize(
    ("learned_as", "expected"),
    [
        (
            "demonstration",
            ["Ada: 'It is B.': 5 tokens trained: imitated", "policy: {own}: {n} tokens not trained: stored"],
        ),
        (
            "preference",
            ["Ada: 'It is B.': 5 tokens trained: the better", "policy: {own}: {n} tokens trained: the worse"],
        ),
        (
            "reward",
            [
                "policy: {own}: {n} tokens trained: by the intervention, -1",
                "Ada: 'It is B.': 5 tokens trained: worth 0",
            ],
        ),
    ],
)
def test_why_lists_trained_tokens_of_both_responses(tmp_path, learned_as, expected):
    async def work(served):
        await take_over(served.http(), "e1")
        own = served.episodes.get(Key("", "", "admin"), "e1").answers[0]
        return own.message.text, len(own.action), len(served.assembly.chat.write(assistant("It is B."), ()))

    overrides = (f"live.intervention={learned_as}", "live.turns_per_update=50")
    with open_run_directory(tmp_path, live_recipe(*overrides), resume=True):
        own, n, count = with_live(tmp_path, work, *overrides)
    printed = CliRunner().invoke(why_command, [str(tmp_path)])
    assert printed.exit_code == 0, printed.output
    assert "Ada took over" in " ".join(printed.output.split())
    of_episode = CliRunner().invoke(why_command, [str(tmp_path), "e1"]).output
    for line in expected:
        line = line.replace("5 tokens", f"{count} tokens").format(own=repr(own[:60]), n=n)
        assert line in of_episode, of_episode
    (turn,) = json.loads(CliRunner().invoke(why_command, [str(tmp_path), "--json"]).output)["turns"]
    assert (turn["by"], turn["learned_as"], turn["state"], turn["update"]) == ("Ada", learned_as, "waits", None)


async def claim_seat(http):
    """Claim the next waiting seat."""
    while True:
        seat = (await post(http, "/v1/people/claim", by="Ada"))[1]["seat"]
        if seat is not None:
            return seat
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_agent_with_held_responses_receives_the_persons_message(tmp_path, stream):
    async def work(served):
        http = served.http()
        assert (await post(http, "/v1/episodes/e/watch", by="Ada", seconds=60))[0] == 200

        async def agent():
            response = await served.client("e").chat.completions.create(
                model="tiny", messages=[ASKED], max_tokens=4, seed=0, stream=stream
            )
            if not stream:
                return response.choices[0].message.content
            return "".join([piece.choices[0].delta.content or "" async for piece in response])

        async def person():
            seat = await claim_seat(http)
            assert (seat["kind"], seat["messages"][0]["content"]) == ("policy", ASKED["content"])
            of = f"/v1/people/seats/{seat['id']}/say"
            assert (await post(http, of, by="Ada", message={"content": ""}))[0] == 400
            assert (await post(http, of, by="Bo", accept=True))[0] == 409
            status, response = await post(http, of, by="Ada", message={"content": "It is B."})
            assert (status, response["over"]) == (200, "said to be over")
            return seat["messages"][-1]["content"]

        received, draft = await asyncio.gather(agent(), person())
        (episode,) = served.episodes
        assert received == "It is B." == episode.answers[1].message.text
        assert draft == episode.answers[0].message.text
        await request_answer(http, "other", [ASKED])  # not delayed

    with_live(tmp_path, work, "live.turns_per_update=50")


def test_held_response_is_sent_unchanged_if_accepted_or_unclaimed(tmp_path):
    async def work(served):
        http = served.http()
        await post(http, "/v1/episodes/stands/watch", by="Ada", seconds=60)

        async def accepts():
            seat = await claim_seat(http)
            await post(http, f"/v1/people/seats/{seat['id']}/say", by="Ada", accept=True)

        response, _ = await asyncio.gather(request_answer(http, "stands", [ASKED]), accepts())
        await post(http, "/v1/episodes/late/watch", by="Ada", seconds=0.05)
        late = await request_answer(http, "late", [ASKED])
        assert response == late
        assert [len(episode.answers) for episode in served.episodes] == [1, 1]
        served.episodes.close()
        stored = [
            (turn.episode, turn.feedback.why) for turn in served.live.turns.get_turns(range(served.live.turns.next))
        ]
        assert stored == [("stands", "accepted by Ada")]
        assert [seat.over for seat in served.people.seats.values()] == ["said to be over", "deadline"]

    with_live(tmp_path, work, "live.intervention=reward", "live.turns_per_update=50")


def test_disconnected_agent_leaves_no_waiting_response(tmp_path):
    async def work(served):
        await post(served.http(), "/v1/episodes/e/watch", by="Ada", seconds=60)
        asking = asyncio.ensure_future(request_answer(served.http(), "e", [ASKED]))
        await claim_seat(served.http())
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert [seat.over for seat in served.people.seats.values()] == ["the agent continued"]

    with_live(tmp_path, work, "live.turns_per_update=50")


@pytest.mark.slow
def test_held_response_is_sent_if_its_episode_is_unlearned_meanwhile(tmp_path):
    async def work(served):
        http = served.http()
        await request_answer(http, "e", [ASKED])
        await post(http, "/v1/episodes/e/rate", rating=1)
        await post(http, "/v1/episodes/e/watch", seconds=60)
        asking = asyncio.ensure_future(request_answer(http, "e", [ASKED], seed=7))
        await claim_seat(http)
        assert (await served.admin_request("POST", "/episodes/e/unlearn"))[0] == 200
        assert (await asking)["role"] == "assistant"
        assert not any(b"Name a letter" in path.read_bytes() for path in (tmp_path / "live").rglob("*.jsonl"))

    with_live(tmp_path, work, "live.turns_per_update=50")
