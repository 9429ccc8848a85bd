"""Live learning from user feedback: what is trained, in which order, and unlearning."""

import asyncio
import json

import pytest

from support.live_serving import LiveServed, corrected, live_recipe
from support.slow import mostly_slow
from whetstone.assembly import assemble
from whetstone.policies import save_policy
from whetstone.serving import Key, Keys
from whetstone.serving.api_keys import hash_key
from whetstone.serving.online.turns import TurnStore


def test_feedback_on_a_response_is_scored_trained_and_served(tmp_path):
    async def run():
        async with LiveServed(tmp_path, live_recipe()) as served:
            before = served.weights()
            for number in range(2):
                await corrected(served, f"e{number}", seed=number)
            await served.settled()
            assert served.weights() != before
            assert served.engine.version == served.live.journal.version == 1
            (turn, _) = served.live.turns.get_turns([0, 1])
            assert turn.feedback.reward == -1
            assert turn.feedback.hint == "No, it should be B."
            decoded = served.assembly.chat.tokenizer.decode(turn.hinted)
            assert "Name a letter.\nNo, it should be B." in decoded
            status, reply = await served.admin_request("GET", "")
            assert (status, reply["learned_turns"], reply["steps"]) == (200, 2, 1)

    asyncio.run(run())


def test_low_learning_rate_is_reported_with_the_key_of_live_learning(tmp_path):
    save_policy(assemble(live_recipe()).policy, tmp_path / "policy")
    policy = f"policy.path={tmp_path / 'policy'}"
    served = LiveServed(tmp_path / "run", live_recipe("policy.tiny=null", "live.learning_rate=1e-6", policy=policy))
    asyncio.run(served.engine.close())
    (line,) = [line for line in served.lines if "learning_rate" in line]
    assert line.startswith("live.learning_rate: 1e-06 suits pretrained models")


def converse(folder, *episodes, overrides=(), then=None):
    """Run the same conversations with a policy of one seed; return its weights or the result of `then`."""

    async def run():
        async with LiveServed(folder, live_recipe(*overrides)) as served:
            for number in episodes:
                await corrected(served, f"e{number}", seed=10 * number)
                await served.settled()
            await served.settled()
            result = await then(served) if then is not None else None
            return served.weights() if then is None else result

    return asyncio.run(run())


def copy_turns(store, folder, *, without=""):
    """Copy the scored turns of one run to another in their order."""
    other = type(store)(folder / "live" / "episodes")
    numbers = sorted(number for episode, of in store.episodes.items() if episode != without for number in of)
    for turn in store.get_turns(numbers):
        other.add(turn)


REPLAYED = ("live.replay_turns=1", "live.reference_kl=0.1", "live.guard={interval_updates: 2, max_drop: 1.0}")


def test_unlearned_episode_leaves_the_weights_of_a_run_without_it(tmp_path):
    async def unlearned(served):
        before = served.weights()
        copy_turns(served.live.turns, tmp_path / "never", without="e1")
        status, reply = await served.admin_request("POST", "/episodes/e1/unlearn")
        assert (status, reply["updates_to_make"]) == (200, 2)
        await served.settled()
        assert (await served.admin_request("GET", "/episodes/e1"))[0] == 404
        assert served.live.journal.version == served.engine.version
        return before, served.weights(), served.live.journal.version

    before, after, version = converse(tmp_path / "one", *range(5), overrides=REPLAYED, then=unlearned)
    never = converse(tmp_path / "never", overrides=REPLAYED)
    assert after == never != before
    assert version > 2 + 2  # no version is used twice
    stored = b"".join(path.read_bytes() for path in (tmp_path / "one" / "live").rglob("*.jsonl"))
    assert b'"e1"' not in stored
    assert converse(tmp_path / "one", overrides=REPLAYED) == after


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return (folder, weights, trained turns) of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, *converse(folder, *range(4), overrides=REPLAYED, then=state_of)


class Killed(BaseException):
    """Simulates a kill."""


@pytest.mark.slow
@pytest.mark.parametrize("at", mostly_slow(["_admit", "apply_update", "save", "_record"], quick=["apply_update"]))
def test_run_killed_anywhere_resumes_to_the_weights_of_an_undisturbed_one(tmp_path, undisturbed, monkeypatch, at):
    """Kill before a turn is stored, before an update, a checkpoint, or its record: no turn is lost or trained twice."""
    folder, *expected = undisturbed
    copy_turns(TurnStore(folder / "live" / "episodes"), tmp_path)

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
    assert converse(tmp_path, overrides=REPLAYED, then=state_of) == tuple(expected)


async def state_of(served):
    return served.weights(), len(served.live.journal.learned)


def test_guard_restores_the_weights_if_a_poisoned_judge_ruins_the_policy(tmp_path):
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
            assert any("the weights of step 0 are restored" in line for line in served.lines)
            return before

    before = asyncio.run(run())
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["live/rolled_back_to"] for row in rows if "live/rolled_back_to" in row] == [0.0]
    assert converse(tmp_path, overrides=guarded) == before


def test_turns_are_trained_only_after_approval_and_never_after_rejection_or_deletion(tmp_path):
    async def run():
        async with LiveServed(tmp_path, live_recipe("live.require_approval=true")) as served:
            before = served.weights()
            for number in range(4):
                await corrected(served, f"e{number}", seed=number)
            await served.settled()
            assert served.weights() == before
            assert (await served.admin_request("GET", ""))[1]["held_turns"] == 4
            assert (await served.admin_request("DELETE", "/episodes/e3"))[0] == 200
            assert (await served.admin_request("POST", "/episodes/e2/reject"))[1]["approved"] is False
            for number in (1, 0):
                status, reply = await served.admin_request("POST", f"/episodes/e{number}/approve")
                assert (status, reply["approved"]) == (200, True)
            await served.settled()
            assert list(served.live.journal.learned) == [1, 0]  # in the order of approval
            assert (await served.admin_request("POST", "/episodes/e0/reject"))[0] == 409
            assert (await served.admin_request("DELETE", "/episodes/e0"))[0] == 409
            status, refused = await served.admin_request("POST", "/episodes/e3/approve")
            assert (status, refused["error"]["message"]) == (404, 'no stored turns of an episode "e3"')
            return served.weights()

    after = asyncio.run(run())
    assert converse(tmp_path, overrides=["live.require_approval=true"]) == after


def test_paused_run_lists_pending_turns_and_is_paused_after_a_restart(tmp_path):
    async def paused(served):
        status, reply = await served.admin_request("GET", "")
        assert status == 200
        assert reply["paused"]
        assert reply["steps"] == 0
        assert [(turn["episode"], turn["why"]) for turn in reply["next"]] == [
            ("e0", 'corrected ("no")'),
            ("e1", 'corrected ("no")'),
        ]
        return served.weights()

    async def run():
        async with LiveServed(tmp_path, live_recipe()) as served:
            assert (await served.admin_request("POST", "/pause"))[0] == 200
            for number in range(2):
                await corrected(served, f"e{number}", seed=number)
            await asyncio.sleep(0.05)
            return await paused(served)

    async def resumed(served):
        before = await paused(served)
        await served.admin_request("POST", "/resume")
        await served.settled()
        return before, served.weights(), served.live.journal.step

    before = asyncio.run(run())
    paused_state, after, steps = converse(tmp_path, then=resumed)
    assert paused_state == before != after
    assert steps == 1


def test_weight_update_during_a_stream_drops_no_token_and_versions_are_recorded(tmp_path):
    async def streamed(served):
        stream = await served.client("streamed").chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Tell me more."}], max_tokens=600, seed=3,
            stream=True, logit_bias={str(stop): -100 for stop in served.assembly.chat.stop_ids},
            stream_options={"include_usage": True},
        )  # fmt: skip
        return [piece async for piece in stream][-1].usage

    async def run():
        async with LiveServed(tmp_path, live_recipe()) as served:
            await served.admin_request("POST", "/pause")
            for number in range(2):
                await corrected(served, f"e{number}", seed=number)
            usage, _ = await asyncio.gather(streamed(served), served.admin_request("POST", "/resume"))
            (answer,) = next(each for each in served.episodes if each.id == "streamed").answers
            assert len(answer.action) == usage.completion_tokens == 600
            assert set(answer.action.versions) == {0, 1}
            assert list(answer.action.versions) == sorted(answer.action.versions)

    asyncio.run(run())


def test_reward_of_the_client_counts_unless_a_scorer_decides(tmp_path):
    async def run():
        async with LiveServed(tmp_path, live_recipe("live.turns_per_update=50")) as served:
            await corrected(served, "paid", says="And then?")
            assert served.live.turns.next == 0
            await served.http().post("/v1/episodes/paid/reward", json={"reward": 0.5, "turns": {"0": -2}})
            return [
                (turn.answer, turn.feedback.reward, turn.feedback.why) for turn in served.live.turns.get_turns([0, 1])
            ]

    paid = "paid by the client"
    assert asyncio.run(run()) == [(0, -2.0, paid), (1, 0.5, paid)]


def test_failing_scorer_costs_its_turn_and_not_the_conversation(tmp_path):
    def fails(followed):
        raise ConnectionError("the judge is down")

    async def run():
        async with LiveServed(tmp_path, live_recipe().with_changes({"live.scorer": fails})) as served:
            answer = await corrected(served, "e0")
            assert len(answer) == 5
            assert (await served.admin_request("GET", ""))[1]["failed_scorings"] == 1
            assert "ConnectionError: the judge is down" in served.lines[0]

    asyncio.run(run())


def test_only_an_administrator_can_list_and_approve(tmp_path):
    async def run():
        keys = Keys({hash_key(role): Key(role, hash_key(role), role) for role in ("reward", "admin")})
        async with LiveServed(tmp_path, live_recipe(), keys=keys) as served:
            for key, status in (("reward", 403), ("admin", 200), ("nobody", 401)):
                for method, path in (("GET", ""), ("POST", "/pause"), ("GET", "/episodes")):
                    assert (await served.admin_request(method, path, headers={"x-api-key": key}))[0] == status

    asyncio.run(run())
