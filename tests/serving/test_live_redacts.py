"""What is redacted is in nothing a live run keeps, and in nothing it learns."""

import asyncio

import pytest

from tests_live import LiveServed, corrected, live_recipe
from whetstone.data.redacting import redacted_words
from whetstone.serving.people import PeopleQueue
from whetstone.trajectory import TRAINABLE

ASKS, SAYS = "My card is 4111. Name a letter.", "No, 4111 is a card; it should be B."


def kept_in(folder):
    return b"".join(path.read_bytes() for path in (folder / "live").rglob("*") if path.is_file())


def test_a_live_run_keeps_and_learns_what_is_left_and_people_see_all_of_it_meanwhile(tmp_path):
    async def run():
        recipe = live_recipe("live.redact=tests_live:without_cards")
        async with LiveServed(tmp_path, recipe) as served:
            before = served.weights()
            for number in range(2):
                await corrected(served, f"e{number}", seed=number, asks=ASKS, says=SAYS)
            body = {"answer": 0, "note": "4111 again", "by": "Ada"}
            rated = await served.http().post("/v1/episodes/e0/rate", json=body)
            assert rated.status_code == 200
            shown = (await served.http().get("/v1/episodes/e0/conversation")).json()
            await served.settled()
            assert served.weights() != before
            return shown, served.live.turns.turns([0, 1]), served.assembly.chat.tokenizer

    shown, turns, tokenizer = asyncio.run(run())
    assert "4111" in str(shown["messages"])
    assert shown["notes"][0]["note"] == "4111 again"
    assert b"4111" not in kept_in(tmp_path)
    for turn in turns:
        (one,) = turn.trajectory.turns
        assert turn.judgement.hint == "No, [card] is a card; it should be B."
        for ids in (one.context.ids, turn.hinted):
            assert "4111" not in tokenizer.decode(ids)
            assert "[card]" in tokenizer.decode(ids)
        assert TRAINABLE.intersection(one.action.authors)  # the policy's own words are learned from as ever


@pytest.mark.parametrize("redact", ["without_words", "broken"])
def test_a_turn_of_which_nothing_is_left_or_that_was_not_read_through_is_not_kept(tmp_path, redact):
    async def run():
        async with LiveServed(tmp_path, live_recipe(f"live.redact=tests_live:{redact}")) as served:
            before = served.weights()
            for number in range(2):
                await corrected(served, f"e{number}", seed=number)
            await served.settled()
            assert served.weights() == before
            assert any("a bug of its own" in line for line in served.lines) == (redact == "broken")
            return len(served.live.turns.episodes)

    assert asyncio.run(run()) == 0


def test_words_of_people_are_redacted_on_the_disk_and_names_are_not(tmp_path):
    path = tmp_path / "people.jsonl"
    queue = PeopleQueue(path, redact=lambda text: text.replace("Ada", "[name]"))
    seat = queue.open(about="Ada wants a refund", seconds=60.0)
    queue.ask(seat.id, 0, [{"role": "assistant", "content": [{"type": "text", "text": "Hello Ada"}]}])
    queue.claim("Ada")
    queue.say(seat.id, "Ada", {"role": "user", "content": "I am Ada"})
    assert queue.get(seat.id).said[0]["message"]["content"] == "I am Ada"
    again = PeopleQueue(path)
    kept = again.get(seat.id)
    assert kept.about == "[name] wants a refund"
    assert kept.messages[0]["content"][0]["text"] == "Hello [name]"
    assert kept.said[0]["message"]["content"] == "I am [name]"
    assert kept.by == "Ada"


@pytest.mark.parametrize("value", [None, 7, "Ada", ["Ada"], {"role": "Ada", "id": "Ada"}])
def test_what_stands_under_no_name_of_words_is_left(value):
    assert redacted_words(value, str.upper) == value
