"""`live.reward_range`: every source of rewards for live learning rejects values outside of the range and values that
are not numbers."""

import asyncio
import math

import pytest

from support.live_serving import LiveServed, corrected, live_recipe
from support.served_policy import HI
from whetstone.errors import RecipeError
from whetstone.serving.client import ServedEpisode
from whetstone.serving.online.scorers import Feedback

CHAT = "/v1/chat/completions"
BAD = ["1e9", "-1e9", "10.5", "1e400", "NaN", "Infinity", "-Infinity", "true", "false", '"1"', "[1]", "1" + "0" * 400]


def body(**fields):
    """Return a request whose numbers are written verbatim."""
    return "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"


WAYS = {
    "an episode": ("reward", lambda bad: body(reward=bad)),
    "an answer": ("reward", lambda bad: body(turn=0, reward=bad)),
    "answers": ("reward", lambda bad: body(turns=body(**{"0": bad}))),
    "an episode next to answers": ("reward", lambda bad: body(reward=bad, turns=body(**{"0": "0.5"}))),
    "a person": ("rate", lambda bad: body(rating=bad, note='"x"')),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_reward_outside_of_the_range_is_rejected_and_changes_nothing(tmp_path, way):
    action, write = WAYS[way]

    async def run():
        async with LiveServed(tmp_path, live_recipe("live.turns_per_update=50")) as served:
            http = served.http()
            await http.post(f"/episodes/e{CHAT}", json={"model": "tiny", "messages": HI, "max_tokens": 2})
            statuses = {}
            for bad in BAD:
                answer = await http.post(f"/v1/episodes/e/{action}", content=write(bad))
                statuses[bad] = answer.status_code
            (episode,) = served.episodes
            state = episode.reward, dict(episode.turn_rewards), served.live.turns.next, list(served.people.notes)
            good = (await http.post(f"/v1/episodes/e/{action}", content=write("-10"))).status_code
            return statuses, state, good

    statuses, state, good = asyncio.run(run())
    assert statuses == dict.fromkeys(BAD, 400)
    assert state == (None, {}, 0, [])
    assert good == 200


@pytest.mark.parametrize("bad", [1e9, -10.5, math.nan, math.inf, True, "1", None])
def test_a_scorer_that_returns_no_such_reward_has_failed(tmp_path, bad):
    def scorer(followed):
        return Feedback(bad, "a hint", "")

    async def run():
        async with LiveServed(tmp_path, live_recipe().with_changes({"live.scorer": scorer})) as served:
            await corrected(served, "e0")
            return (await served.admin_request("GET", ""))[1], served.lines, served.live.turns.next

    state, lines, stored = asyncio.run(run())
    assert (state["failed_scorings"], stored) == (1, 0)
    assert "a number from -10 to 10 (live.reward_range)" in lines[0]


def test_the_range_is_a_key_of_the_recipe(tmp_path):
    async def run():
        recipe = live_recipe("live.turns_per_update=50", "live.reward_range=[0, 1]")
        async with LiveServed(tmp_path, recipe) as served:
            http = served.http()
            await http.post(f"/episodes/e{CHAT}", json={"model": "tiny", "messages": HI, "max_tokens": 2})
            answers = [await http.post("/v1/episodes/e/reward", json={"reward": value}) for value in (-0.1, 1.1, 1)]
            return [answer.status_code for answer in answers], answers[0].json()["error"]["message"]

    statuses, message = asyncio.run(run())
    assert statuses == [400, 400, 200]
    assert message == "reward: a reward must be from 0 to 1 (live.reward_range), got -0.1"


@pytest.mark.parametrize("value", ["[1, 0]", "[0, 0]", "[0]", "[0, 1, 2]", "[0, .nan]", "[-.inf, .inf]", "5"])
def test_invalid_range_is_rejected_with_its_key(value):
    with pytest.raises(RecipeError, match="reward_range"):
        live_recipe(f"live.reward_range={value}")


@pytest.mark.parametrize("bad", [True, False, math.nan, math.inf, "1", None])
def test_the_client_sends_only_finite_numbers(bad):
    episode = ServedEpisode("t", base_url="http://127.0.0.1:9/v1")
    for turn in (None, 0):
        with pytest.raises(ValueError, match="a finite number"):
            episode.reward(bad, turn=turn)
