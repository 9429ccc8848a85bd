"""Redacted text is in no file and no training data of a live run."""

import asyncio

import pytest

from support.live_serving import LiveServed, corrected, live_recipe
from whetstone.data.redacting import redacted_words
from whetstone.serving.human_in_the_loop import PeopleQueue
from whetstone.trajectory import TRAINABLE

ASKS, SAYS = "My card is 4111. Name a letter.", "No, 4111 is a card; it should be B."


def kept_in(folder):
    return b"".join(path.read_bytes() for path in (folder / "live").rglob("*") if path.is_file())


def test_live_run_stores_and_trains_redacted_text_and_people_see_all_meanwhile(tmp_path):
    async def run():
        recipe = live_recipe("live.redact=support.live_serving:without_cards")
        async with LiveServed(tmp_path, recipe) as served:
            before = served.weights()
            for number in range(2):
                await corrected(served, f"e{number}", seed=number, asks=ASKS, says=SAYS)
            body = {"answer": 0, "note": "4111 again", "by": "Ada"}
            rated = await served.http().post("/v1/episodes/e0/rate", json=body)
            assert rated.status_code == 200
            conversation = (await served.http().get("/v1/episodes/e0/conversation")).json()
            await served.settled()
            assert served.weights() != before
            return conversation, served.live.turns.get_turns([0, 1]), served.assembly.chat.tokenizer

    conversation, turns, tokenizer = asyncio.run(run())
    assert "4111" in str(conversation["messages"])
    assert conversation["notes"][0]["note"] == "4111 again"
    assert b"4111" not in kept_in(tmp_path)
    for turn in turns:
        (one,) = turn.trajectory.turns
        assert turn.feedback.hint == "No, [card] is a card; it should be B."
        for ids in (one.context.ids, turn.hinted):
            assert "4111" not in tokenizer.decode(ids)
            assert "[card]" in tokenizer.decode(ids)
        assert TRAINABLE.intersection(one.action.authors)  # words of the policy are trained as usual


@pytest.mark.parametrize("redact", ["without_words", "broken"])
def test_fully_redacted_or_unchecked_turn_is_not_stored(tmp_path, redact):
    async def run():
        async with LiveServed(tmp_path, live_recipe(f"live.redact=support.live_serving:{redact}")) as served:
            before = served.weights()
            for number in range(2):
                await corrected(served, f"e{number}", seed=number)
            await served.settled()
            assert served.weights() == before
            assert any("a bug of the redactor" in line for line in served.lines) == (redact == "broken")
            return len(served.live.turns.episodes)

    assert asyncio.run(run()) == 0


def test_messages_of_people_are_redacted_on_disk_and_names_are_not(tmp_path):
    path = tmp_path / "people.jsonl"
    queue = PeopleQueue(path, redact=lambda text: text.replace("Ada", "[name]"))
    seat = queue.open_seat(about="Ada wants a refund", seconds=60.0)
    queue.request_message(seat.id, 0, [{"role": "assistant", "content": [{"type": "text", "text": "Hello Ada"}]}])
    queue.claim_seat("Ada")
    queue.store_message(seat.id, "Ada", {"role": "user", "content": "I am Ada"})
    assert queue.get(seat.id).answers[0]["message"]["content"] == "I am Ada"
    reopened = PeopleQueue(path)
    stored = reopened.get(seat.id)
    assert stored.about == "[name] wants a refund"
    assert stored.messages[0]["content"][0]["text"] == "Hello [name]"
    assert stored.answers[0]["message"]["content"] == "I am [name]"
    assert stored.by == "Ada"


@pytest.mark.parametrize("value", [None, 7, "Ada", ["Ada"], {"role": "Ada", "id": "Ada"}])
def test_fields_without_text_are_not_redacted(value):
    assert redacted_words(value, str.upper) == value
