"""A person says something in the policy's place: in which tokens it stands, what is kept beside it, what is learned."""

import asyncio
import json
import math

import pytest
import torch
from click.testing import CliRunner

from tests_live import LiveServed, live_recipe
from tests_served import TOOL, made, played
from whetstone.algorithms.objectives.preference import dpo
from whetstone.chat import assistant, user
from whetstone.cli.why import why
from whetstone.record.run_directory import claimed
from whetstone.serving import Key, Keys
from whetstone.serving.access import hashed_key
from whetstone.serving.live.credit import paired, standardised
from whetstone.trajectory import Author

ASKED = {"role": "user", "content": "Name a letter."}


async def asked(http, episode, messages, *, seed=0, tools=()):
    """The policy's next answer, as a message."""
    body = {"model": "tiny", "messages": messages, "max_tokens": 4, "seed": seed}
    body |= {"tools": list(tools)} if tools else {}
    answer = await http.post(f"/episodes/{episode}/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


async def post(http, path, **body):
    """(status, body)"""
    answer = await http.post(path, json=body)
    return answer.status_code, answer.json()


async def taken_over(http, episode, content="It is B.", **more):
    """An episode whose first answer a person replaces; the messages so far."""
    await asked(http, episode, [ASKED])
    status, told = await post(http, f"/v1/episodes/{episode}/take-over", message={"content": content}, by="Ada", **more)
    assert status == 200, told
    return [ASKED, told["message"]]


def in_live(folder, work, *overrides, **options):
    """What `work` comes to of a service that learns."""

    async def run():
        async with LiveServed(folder, live_recipe(*overrides), **options) as served:
            return await work(served)

    return asyncio.run(run())


def test_an_episode_goes_on_behind_a_persons_words_in_the_tokens_the_model_would_have_to_sample(tmp_path):
    async def work(served):
        http, chat = served.http(), served.assembly.chat
        said = await taken_over(http, "e")
        await asked(http, "e", [*said, {"role": "user", "content": "And then?"}], seed=5)
        (episode,) = served.episodes
        policy, person, then = episode.said
        assert person.message.text == "It is B."
        assert person.action.ids == chat.write(person.message, ())
        assert set(person.action.authors) == {Author.EXPERT}
        assert all(map(math.isnan, person.action.logprobs))
        assert (person.by, policy.replaced, policy.by) == ("Ada", person, "")
        assert person.at > 0
        assert then.context.ids[: len(policy.context.ids)] == policy.context.ids
        assert then.context.ids[len(policy.context.ids) :][: len(person.action)] == person.action.ids
        assert set(policy.action.authors) == {Author.POLICY}

    in_live(tmp_path, work)


def test_on_record_the_policys_own_words_stand_beside_the_episode_and_are_worth_minus_one():
    async def work(served):
        said = await taken_over(served.http(), "e")
        await asked(served.http(), "e", [*said, {"role": "user", "content": "And then?"}], seed=5)
        await post(served.http(), "/v1/episodes/e/reward", reward=1.0)
        return served.over

    episode, replaced = played(made(), work)
    assert (episode.marks, replaced.marks) == (("intervened",), ("replaced",))
    assert episode.turns[0].message.text == "It is B."
    assert [set(turn.action.authors) for turn in episode.turns] == [{Author.EXPERT}, {Author.POLICY}]
    assert len(episode.segments()) == 1  # the person's words are trained in one row with what follows them
    assert (episode.score.value, replaced.score.value) == (1.0, -1.0)
    assert replaced.task_id == episode.task_id
    (turn,) = replaced.turns
    assert turn.context.ids == episode.turns[0].context.ids
    assert not any(map(math.isnan, turn.action.logprobs))


def test_a_tool_call_is_taken_over_and_its_result_goes_on_from_there(tmp_path):
    async def work(served):
        http = served.http()
        await asked(http, "e", [ASKED], tools=[TOOL])
        call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
        status, told = await post(http, "/v1/episodes/e/take-over", message={"content": None, "tool_calls": [call]})
        assert status == 200
        (made,) = told["message"]["tool_calls"]
        assert made["function"] == call["function"]
        result = {"role": "tool", "tool_call_id": made["id"], "content": "3"}
        await asked(http, "e", [ASKED, told["message"], result], tools=[TOOL])
        (episode,) = served.episodes
        assert episode.said[2].before is episode.said[1]
        whole = (await http.get("/v1/episodes/e/conversation")).json()
        assert [message["role"] for message in whole["messages"]] == ["user", "assistant", "tool", "assistant"]
        assert [answer["replaced_by"] for answer in whole["answers"]] == [1, None, None]
        assert [answer["by"] for answer in whole["answers"]] == ["", "somebody", ""]

    in_live(tmp_path, work)


@pytest.mark.parametrize(
    ("learned_as", "kept"),
    [
        ("demonstration", [("It is B.", 1.0, {Author.EXPERT}, True)]),
        ("preference", [("It is B.", 1.0, {Author.EXPERT}, True)]),
        ("reward", [(None, -1.0, {Author.POLICY}, True)]),
        ("none", []),
    ],
)
def test_the_recipe_says_what_is_learned_from_a_person_who_took_over(tmp_path, learned_as, kept):
    async def work(served):
        said = await taken_over(served.http(), "e")
        own = served.episodes.get(Key("", "", "admin"), "e").said[0].message.text
        await asked(served.http(), "e", [*said, {"role": "user", "content": "And then?"}], seed=5)
        turns = served.live.turns.turns(range(served.live.turns.next))
        found = []
        for turn in turns:
            (learned,) = turn.trajectory.turns
            (other,) = turn.intervention.other.turns
            assert {learned.message.text, other.message.text} == {own, "It is B."}
            assert learned.context.ids == other.context.ids
            assert turn.intervention.by == "Ada"
            found.append((learned.message.text, turn.judgement.reward, set(learned.action.authors), turn.told()))
        wanted = [(own if text is None else text, *rest) for text, *rest in kept]
        assert [each[:3] for each in found] == [each[:3] for each in wanted]
        scores = [[each.score.value for each in turn.group(reward_weight=1.0).trajectories] for turn in turns]
        assert scores == {"demonstration": [[1.0]], "preference": [[1.0, -1.0]], "reward": [[-1.0, 0.0]]}.get(
            learned_as, []
        )

    in_live(tmp_path, work, f"live.intervention={learned_as}", "live.turns_per_update=50")


@pytest.mark.parametrize("learned_as", ["demonstration", "preference", "reward"])
def test_a_persons_words_get_likelier_and_what_was_learned_can_be_unlearned(tmp_path, learned_as):
    overrides = (f"live.intervention={learned_as}", "live.turns_per_update=1", "live.hint_weight=0")

    async def work(served):
        before = served.weights()
        likely = likelihood(served, "B")
        for number in range(4):
            await taken_over(served.http(), f"e{number}", "B")
            await served.settled()
        assert likelihood(served, "B") > likely + 0.5
        for number in range(4):
            assert (await served.asked("POST", f"/episodes/e{number}/unlearn"))[0] == 200
        await served.settled()
        assert served.weights() == before
        assert not any(b"Ada" in path.read_bytes() for path in (tmp_path / "live").rglob("*.jsonl"))

    in_live(tmp_path, work, *overrides)


def likelihood(served, text):
    """The log-prob of an answer to the question, end of turn included."""
    chat = served.assembly.chat
    context, ids = chat.open([user(ASKED["content"])], ()).ids, chat.write(assistant(text), ())
    with torch.no_grad():
        logits = served.assembly.policy.model(torch.tensor([[*context, *ids]])).logits[0].log_softmax(-1)
    return sum(logits[len(context) - 1 + place, token].item() for place, token in enumerate(ids))


def test_where_interventions_are_the_reward_what_a_watcher_let_stand_is_0_and_what_nobody_watched_is_nothing(tmp_path):
    async def work(served):
        http = served.http()
        for name in ("watched", "alone"):
            said = [ASKED, await asked(http, name, [ASKED])]
            if name == "watched":
                assert (await post(http, f"/v1/episodes/{name}/watch", by="Ada"))[0] == 200
            await asked(http, name, [*said, {"role": "user", "content": "And then?"}], seed=5)
            await post(http, f"/v1/episodes/{name}/take-over", message={"content": "B"}, by="Ada")
        served.episodes.close()
        turns = served.live.turns.turns(range(served.live.turns.next))
        return [(turn.episode, turn.answer, turn.judgement.reward, turn.judgement.why) for turn in turns]

    assert in_live(tmp_path, work, "live.intervention=reward", "live.turns_per_update=50") == [
        ("watched", 0, 0.0, "Ada let it stand"),
        ("watched", 1, -1.0, "Ada took over: reward"),
        ("alone", 1, -1.0, "Ada took over: reward"),
    ]


def test_what_was_let_stand_counts_beside_what_was_taken_over():
    assert standardised(torch.tensor([0.0, -1.0, -1.0, 0.0])).tolist() == pytest.approx([1, -1, -1, 1], abs=1e-5)
    assert standardised(torch.tensor([0.0, -1.0, 0.0, 0.0, 0.0])).tolist() == pytest.approx(
        [0.5, -2, *[0.5] * 3], abs=1e-5
    )
    assert standardised(torch.tensor([-1.0, -1.0])).tolist() == [0, 0]


def test_a_pair_weighs_tokens_as_the_gradient_of_dpo_does():
    torch.manual_seed(0)
    beta, owner = 0.3, torch.tensor([0, 0, 1, 1, 1, 2])
    logprobs = torch.randn(6, dtype=torch.float64).requires_grad_()
    reference = torch.randn(6, dtype=torch.float64)
    rewards, group = torch.tensor([1.0, -1.0, 0.25]), torch.tensor([0, 0, 1])
    sums, of_reference = (torch.zeros(3, dtype=torch.float64).index_add(0, owner, x) for x in (logprobs, reference))
    pair, keys = slice(0, 2), torch.arange(2)
    of_dpo = dpo(sums[pair], of_reference[pair], rewards[pair], group[pair], keys, keys + 1, beta=beta)
    of_dpo.loss.backward()
    found = paired(rewards, group, logprobs.detach(), reference, owner, beta=beta)
    assert torch.allclose(-beta * found[owner][:5], logprobs.grad[:5])
    assert found[2].item() == 0.25  # alone it counts for its reward


def test_what_cannot_be_taken_over_is_refused_with_the_reason(tmp_path):
    async def work(served):
        http, over = served.http(), "/v1/episodes/e/take-over"
        own = await asked(http, "e", [ASKED])
        await asked(http, "e", [ASKED, own, {"role": "user", "content": "And then?"}], seed=5)
        last = served.episodes.get(Key("", "", "admin"), "e").said[1].message.text
        for body, status, said in (
            ({"message": {"content": "B"}, "answer": 0}, 409, "the conversation went on from it"),
            ({"message": {"content": "B"}, "answer": 7}, 400, "answer 7: the episode has 2 answers, from 0"),
            ({"message": {"content": "B"}, "answer": True}, 400, "answer True: the episode has 2 answers"),
            ({"message": {"content": "  "}}, 400, "has neither words nor calls"),
            ({"message": {"content": last}}, 400, "is what answer 1 says"),
            ({"message": {"role": "user", "content": "B"}}, 400, "what the assistant says is asked for"),
            ({"message": "B"}, 400, "an object with content or tool_calls is asked for"),
            ({"message": {"content": "B " * 5000}}, 400, "tokens stand before it"),
            ({"message": {"content": "B"}}, 200, ""),
            ({"message": {"content": "C"}, "answer": 1}, 409, "was taken over already"),
            ({"message": {"content": "C"}}, 409, "was taken over already"),
        ):
            found, told = await post(http, over, **body)
            assert (found, said in told.get("error", {}).get("message", "")) == (status, True), told
        assert (await post(http, "/v1/episodes/other/take-over", message={"content": "B"}))[0] == 404
        for name, body in (("x" * 201, {}), ("e", {"seconds": -1}), ("e", {"seconds": 1e9}), ("e", {"seconds": "x"})):
            assert (await post(http, f"/v1/episodes/{name}/watch", **body))[0] == 400

    in_live(tmp_path, work, "live.turns_per_update=50")


def test_a_rating_is_what_is_learned_of_an_answer_its_note_the_hint_and_both_are_kept(tmp_path):
    async def work(served):
        http = served.http()
        await asked(http, "e", [ASKED])
        rate = "/v1/episodes/e/rate"
        assert (await post(http, rate, note="Short answers.", by="Bo"))[0] == 200
        assert (await post(http, rate, rating=-1, note="It should be B.", by="Ada"))[0] == 200
        assert (await post(http, rate, rating=1, by="Bo"))[0] == 409
        assert (await post(http, rate))[0] == 400
        (turn,) = served.live.turns.turns([0])
        assert (turn.judgement.reward, turn.judgement.hint, turn.judgement.why) == (
            -1.0,
            "It should be B.",
            "rated by Ada",
        )
        whole = (await http.get("/v1/episodes/e/conversation")).json()
        assert [(note["by"], note["note"], note["rating"]) for note in whole["notes"]] == [
            ("Bo", "Short answers.", None),
            ("Ada", "It should be B.", -1.0),
        ]

    in_live(tmp_path, work, "live.turns_per_update=50")


def test_who_may_not_pay_may_not_take_over_and_a_person_is_called_as_his_key(tmp_path):
    keys = Keys({hashed_key(name): Key(name, hashed_key(name), name) for name in ("use", "reward", "admin")})

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
        return [turn.intervention.by for turn in served.live.turns.turns([0, 1])]

    assert in_live(tmp_path, work, "live.turns_per_update=50", keys=keys) == ["reward", "admin"]


@pytest.mark.parametrize(
    ("learned_as", "told"),
    [
        (
            "demonstration",
            ["Ada: 'It is B.': 5 tokens trained: imitated", "policy: {own}: {n} tokens not trained: kept"],
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
def test_why_says_which_tokens_of_the_two_are_trained(tmp_path, learned_as, told):
    async def work(served):
        await taken_over(served.http(), "e1")
        own = served.episodes.get(Key("", "", "admin"), "e1").said[0]
        return own.message.text, len(own.action), len(served.assembly.chat.write(assistant("It is B."), ()))

    overrides = (f"live.intervention={learned_as}", "live.turns_per_update=50")
    with claimed(tmp_path, live_recipe(*overrides), resume=True):
        own, n, count = in_live(tmp_path, work, *overrides)
    shown = CliRunner().invoke(why, [str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "Ada took over" in " ".join(shown.output.split())
    of_episode = CliRunner().invoke(why, [str(tmp_path), "e1"]).output
    for line in told:
        line = line.replace("5 tokens", f"{count} tokens").format(own=repr(own[:60]), n=n)
        assert line in of_episode, of_episode
    (turn,) = json.loads(CliRunner().invoke(why, [str(tmp_path), "--json"]).output)["turns"]
    assert (turn["by"], turn["learned_as"], turn["state"], turn["update"]) == ("Ada", learned_as, "waits", None)


async def next_seat(http):
    """The next seat that waits, claimed."""
    while True:
        seat = (await post(http, "/v1/people/claim", by="Ada"))[1]["seat"]
        if seat is not None:
            return seat
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_whose_answers_are_held_hears_what_a_person_says_instead(tmp_path, stream):
    async def work(served):
        http = served.http()
        assert (await post(http, "/v1/episodes/e/watch", by="Ada", seconds=60))[0] == 200

        async def agent():
            told = await served.client("e").chat.completions.create(
                model="tiny", messages=[ASKED], max_tokens=4, seed=0, stream=stream
            )
            if not stream:
                return told.choices[0].message.content
            return "".join([piece.choices[0].delta.content or "" async for piece in told])

        async def person():
            seat = await next_seat(http)
            assert (seat["kind"], seat["messages"][0]["content"]) == ("policy", ASKED["content"])
            of = f"/v1/people/seats/{seat['id']}/say"
            assert (await post(http, of, by="Ada", message={"content": ""}))[0] == 400
            assert (await post(http, of, by="Bo", accept=True))[0] == 409
            status, told = await post(http, of, by="Ada", message={"content": "It is B."})
            assert (status, told["over"]) == (200, "said to be over")
            return seat["messages"][-1]["content"]

        heard, draft = await asyncio.gather(agent(), person())
        (episode,) = served.episodes
        assert heard == "It is B." == episode.said[1].message.text
        assert draft == episode.said[0].message.text
        await asked(http, "other", [ASKED])  # not held

    in_live(tmp_path, work, "live.turns_per_update=50")


def test_a_held_answer_goes_out_as_it_is_where_it_is_let_stand_or_nobody_comes(tmp_path):
    async def work(served):
        http = served.http()
        await post(http, "/v1/episodes/stands/watch", by="Ada", seconds=60)

        async def accepts():
            seat = await next_seat(http)
            await post(http, f"/v1/people/seats/{seat['id']}/say", by="Ada", accept=True)

        told, _ = await asyncio.gather(asked(http, "stands", [ASKED]), accepts())
        await post(http, "/v1/episodes/late/watch", by="Ada", seconds=0.05)
        late = await asked(http, "late", [ASKED])
        assert told == late
        assert [len(episode.said) for episode in served.episodes] == [1, 1]
        served.episodes.close()
        kept = [(turn.episode, turn.judgement.why) for turn in served.live.turns.turns(range(served.live.turns.next))]
        assert kept == [("stands", "Ada let it stand")]
        assert [seat.over for seat in served.people.seats.values()] == ["said to be over", "deadline"]

    in_live(tmp_path, work, "live.intervention=reward", "live.turns_per_update=50")


def test_an_agent_that_hangs_up_leaves_no_answer_waiting(tmp_path):
    async def work(served):
        await post(served.http(), "/v1/episodes/e/watch", by="Ada", seconds=60)
        asking = asyncio.ensure_future(asked(served.http(), "e", [ASKED]))
        await next_seat(served.http())
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert [seat.over for seat in served.people.seats.values()] == ["the agent went on"]

    in_live(tmp_path, work, "live.turns_per_update=50")


@pytest.mark.slow
def test_an_answer_that_is_held_goes_out_where_its_episode_is_unlearned_meanwhile(tmp_path):
    async def work(served):
        http = served.http()
        await asked(http, "e", [ASKED])
        await post(http, "/v1/episodes/e/rate", rating=1)
        await post(http, "/v1/episodes/e/watch", seconds=60)
        asking = asyncio.ensure_future(asked(http, "e", [ASKED], seed=7))
        await next_seat(http)
        assert (await served.asked("POST", "/episodes/e/unlearn"))[0] == 200
        assert (await asking)["role"] == "assistant"
        assert not any(b"Name a letter" in path.read_bytes() for path in (tmp_path / "live").rglob("*.jsonl"))

    in_live(tmp_path, work, "live.turns_per_update=50")
