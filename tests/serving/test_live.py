"""A policy that learns from what follows its answers: what it learns from, in which order, and how it forgets."""

import asyncio
import json

import pytest

from tests_live import LiveServed, corrected, live_recipe
from tests_slow import mostly_slow
from whetstone.serving import Key, Keys
from whetstone.serving.access import hashed_key
from whetstone.serving.live.turns import TurnStore


def test_what_follows_an_answer_is_judged_learned_from_and_served(tmp_path):
    async def run():
        async with LiveServed(tmp_path, live_recipe()) as served:
            before = served.weights()
            for number in range(2):
                await corrected(served, f"e{number}", seed=number)
            await served.settled()
            assert served.weights() != before
            assert served.engine.version == served.live.journal.version == 1
            (turn, _) = served.live.turns.turns([0, 1])
            assert turn.judgement.reward == -1
            assert turn.judgement.hint == "No, it should be B."
            decoded = served.assembly.chat.tokenizer.decode(turn.hinted)
            assert "Name a letter.\nNo, it should be B." in decoded
            status, told = await served.asked("GET", "")
            assert (status, told["learned_turns"], told["steps"]) == (200, 2, 1)

    asyncio.run(run())


def talked(folder, *episodes, overrides=(), then=None):
    """The same conversations with a policy of the same seed; what `then` says of the server when all is learned."""

    async def run():
        async with LiveServed(folder, live_recipe(*overrides)) as served:
            for number in episodes:
                await corrected(served, f"e{number}", seed=10 * number)
                await served.settled()
            await served.settled()
            found = await then(served) if then is not None else None
            return served.weights() if then is None else found

    return asyncio.run(run())


def copied(store, folder, *, without=""):
    """The judged turns of one run as those of another, in their order."""
    other = type(store)(folder / "live" / "episodes")
    numbers = sorted(number for episode, of in store.episodes.items() if episode != without for number in of)
    for turn in store.turns(numbers):
        other.add(turn)


REPLAYED = ("live.replay_turns=1", "live.reference_kl=0.1", "live.guard={interval_updates: 2, max_drop: 1.0}")


def test_an_episode_that_is_unlearned_leaves_the_weights_of_a_run_that_never_saw_it(tmp_path):
    async def unlearned(served):
        before = served.weights()
        copied(served.live.turns, tmp_path / "never", without="e1")
        status, told = await served.asked("POST", "/episodes/e1/unlearn")
        assert (status, told["updates_to_make"]) == (200, 2)
        await served.settled()
        assert (await served.asked("GET", "/episodes/e1"))[0] == 404
        assert served.live.journal.version == served.engine.version
        return before, served.weights(), served.live.journal.version

    before, after, version = talked(tmp_path / "one", *range(5), overrides=REPLAYED, then=unlearned)
    never = talked(tmp_path / "never", overrides=REPLAYED)
    assert after == never != before
    assert version > 2 + 2  # no version is given twice
    kept = b"".join(path.read_bytes() for path in (tmp_path / "one" / "live").rglob("*.jsonl"))
    assert b'"e1"' not in kept
    assert talked(tmp_path / "one", overrides=REPLAYED) == after


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(folder, weights, learned turns) of a run nobody killed."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, *talked(folder, *range(4), overrides=REPLAYED, then=state_of)


class Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.slow
@pytest.mark.parametrize("at", mostly_slow(["_admit", "learn", "save", "_record"], quick=["learn"]))
def test_killed_anywhere_it_goes_on_to_the_weights_of_a_run_nobody_killed(tmp_path, whole, monkeypatch, at):
    """In front of a turn's line, an update, a checkpoint, an update's record: nothing is lost or learned twice."""
    folder, *expected = whole
    copied(TurnStore(folder / "live" / "episodes"), tmp_path)

    def dies(self, *args, **kwargs):
        raise Killed

    async def killed():
        served = LiveServed(tmp_path, live_recipe(*REPLAYED))
        monkeypatch.setattr(served.live if at.startswith("_") else served.live.weights, at, dies)
        try:
            await served.live.begin()
            await served.live.run()
        except Killed:
            await served.engine.close()

    asyncio.run(killed())
    assert talked(tmp_path, overrides=REPLAYED, then=state_of) == tuple(expected)


async def state_of(served):
    return served.weights(), len(served.live.journal.learned)


def test_where_a_poisoned_judge_ruins_the_policy_the_guard_goes_back(tmp_path):
    guarded = ["live.guard={interval_updates: 1, max_drop: 0.1}"]

    async def run():
        async with LiveServed(tmp_path, live_recipe(*guarded)) as served:
            await served.settled()
            before = served.weights()
            served.live.journal.success[0] = 0.9
            await corrected(served, "e0")
            await corrected(served, "e1")
            await served.settled()
            assert served.weights() == before
            assert served.live.journal.steps[2].to == 0
            assert served.engine.version == 2
            assert any("the weights of step 0 are back" in line for line in served.lines)
            return before

    before = asyncio.run(run())
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["live/rolled_back_to"] for row in rows if "live/rolled_back_to" in row] == [0.0]
    assert talked(tmp_path, overrides=guarded) == before


def test_nothing_is_learned_before_it_is_approved_and_what_is_rejected_or_deleted_never(tmp_path):
    async def run():
        async with LiveServed(tmp_path, live_recipe("live.require_approval=true")) as served:
            before = served.weights()
            for number in range(4):
                await corrected(served, f"e{number}", seed=number)
            await served.settled()
            assert served.weights() == before
            assert (await served.asked("GET", ""))[1]["held_turns"] == 4
            assert (await served.asked("DELETE", "/episodes/e3"))[0] == 200
            assert (await served.asked("POST", "/episodes/e2/reject"))[1]["approved"] is False
            for number in (1, 0):
                status, told = await served.asked("POST", f"/episodes/e{number}/approve")
                assert (status, told["approved"]) == (200, True)
            await served.settled()
            assert list(served.live.journal.learned) == [1, 0]  # in the order of approval
            assert (await served.asked("POST", "/episodes/e0/reject"))[0] == 409
            assert (await served.asked("DELETE", "/episodes/e0"))[0] == 409
            status, refused = await served.asked("POST", "/episodes/e3/approve")
            assert (status, refused["error"]["message"]) == (404, 'nothing is kept of an episode "e3"')
            return served.weights()

    after = asyncio.run(run())
    assert talked(tmp_path, overrides=["live.require_approval=true"]) == after


def test_paused_it_shows_what_it_would_learn_and_goes_on_paused_when_started_again(tmp_path):
    async def paused(served):
        status, told = await served.asked("GET", "")
        assert status == 200
        assert told["paused"]
        assert told["steps"] == 0
        assert [(turn["episode"], turn["why"]) for turn in told["next"]] == [
            ("e0", 'corrected ("no")'),
            ("e1", 'corrected ("no")'),
        ]
        return served.weights()

    async def run():
        async with LiveServed(tmp_path, live_recipe()) as served:
            assert (await served.asked("POST", "/pause"))[0] == 200
            for number in range(2):
                await corrected(served, f"e{number}", seed=number)
            await asyncio.sleep(0.05)
            return await paused(served)

    async def resumed(served):
        before = await paused(served)
        await served.asked("POST", "/resume")
        await served.settled()
        return before, served.weights(), served.live.journal.step

    before = asyncio.run(run())
    held, after, steps = talked(tmp_path, then=resumed)
    assert held == before != after
    assert steps == 1


def test_weights_that_change_in_the_middle_of_a_stream_drop_nothing_and_each_token_knows_its_version(tmp_path):
    async def streamed(served):
        stream = await served.client("streamed").chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Tell me more."}], max_tokens=600, seed=3,
            stream=True, logit_bias={str(stop): -100 for stop in served.assembly.chat.stop_ids},
            stream_options={"include_usage": True},
        )  # fmt: skip
        return [piece async for piece in stream][-1].usage

    async def run():
        async with LiveServed(tmp_path, live_recipe()) as served:
            await served.asked("POST", "/pause")
            for number in range(2):
                await corrected(served, f"e{number}", seed=number)
            usage, _ = await asyncio.gather(streamed(served), served.asked("POST", "/resume"))
            (said,) = next(each for each in served.episodes if each.id == "streamed").said
            assert len(said.action) == usage.completion_tokens == 600
            assert set(said.action.versions) == {0, 1}
            assert list(said.action.versions) == sorted(said.action.versions)

    asyncio.run(run())


def test_an_answer_is_paid_by_the_client_where_nothing_that_followed_says_more(tmp_path):
    async def run():
        async with LiveServed(tmp_path, live_recipe("live.turns_per_update=50")) as served:
            await corrected(served, "paid", says="And then?")
            assert served.live.turns.next == 0
            await served.http().post("/v1/episodes/paid/reward", json={"reward": 0.5, "turns": {"0": -2}})
            return [
                (turn.answer, turn.judgement.reward, turn.judgement.why) for turn in served.live.turns.turns([0, 1])
            ]

    paid = "paid by the client"
    assert asyncio.run(run()) == [(0, -2.0, paid), (1, 0.5, paid)]


def test_a_scorer_that_fails_costs_its_turn_and_not_the_conversation(tmp_path):
    def fails(followed):
        raise ConnectionError("the judge is down")

    async def run():
        async with LiveServed(tmp_path, live_recipe().with_changes({"live.scorer": fails})) as served:
            said = await corrected(served, "e0")
            assert len(said) == 5
            assert (await served.asked("GET", ""))[1]["failed_scorings"] == 1
            assert "ConnectionError: the judge is down" in served.lines[0]

    asyncio.run(run())


def test_only_an_administrator_sees_and_decides(tmp_path):
    async def run():
        keys = Keys({hashed_key(role): Key(role, hashed_key(role), role) for role in ("reward", "admin")})
        async with LiveServed(tmp_path, live_recipe(), keys=keys) as served:
            for key, status in (("reward", 403), ("admin", 200), ("nobody", 401)):
                for method, path in (("GET", ""), ("POST", "/pause"), ("GET", "/episodes")):
                    assert (await served.asked(method, path, headers={"x-api-key": key}))[0] == status

    asyncio.run(run())
