"""Sizes that one client can reach, and their effect on other clients."""

import asyncio
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.served_policy import HI, Scripted, at_a_socket, build_assembly, played, request, sent_raw
from whetstone.chat.api.request_fields import parse_seconds, parse_stops, whole_number
from whetstone.chat.api.requests import RefusedError
from whetstone.serving import Key, Keys
from whetstone.serving.api_keys import hash_key
from whetstone.serving.human_in_the_loop import PeopleQueue

CHAT, MEBIBYTE = "/v1/chat/completions", 1 << 20


@pytest.fixture(scope="module")
def assembly():
    return build_assembly()


def keys_of(**roles):
    return Keys({hash_key(name): Key(name, hash_key(name), role) for name, role in roles.items()})


class Counting:
    """A tokenizer that counts the characters that it encodes."""

    def __init__(self, tokenizer):
        self._tokenizer, self.characters = tokenizer, 0

    def encode(self, text, **options):
        self.characters += len(text)
        return self._tokenizer.encode(text, **options)

    def __len__(self):
        return len(self._tokenizer)

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)


TEXT = "four words of text "
LONG = TEXT * (15 * MEBIBYTE // len(TEXT))
LONG_BODIES = {
    CHAT: {"messages": [{"role": "user", "content": LONG}]},
    "/v1/completions": {"prompt": LONG},
    "/v1/responses": {"input": LONG},
    "/v1/messages": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": LONG}]},
}


@pytest.mark.parametrize("path", LONG_BODIES)
def test_15_mebibytes_are_rejected_before_a_character_is_tokenized(assembly, path, monkeypatch):
    counting = Counting(assembly.chat.tokenizer)
    monkeypatch.setattr(assembly.chat, "tokenizer", counting)

    async def work(served):
        async with at_a_socket(served.app) as port:
            return await sent_raw(port, request(path, {"model": "tiny", **LONG_BODIES[path]}))

    status, _, body = played(assembly, work)
    assert status == 413
    assert "a request may have" in json.loads(body)["error"]["message"]
    assert counting.characters < 1000


@pytest.mark.parametrize("path", LONG_BODIES)
def test_text_that_no_tokens_can_fit_is_rejected_before_it_is_tokenized(assembly, path, monkeypatch):
    """Reject between the limit of bytes, which applies to JSON, and the limit of characters."""
    counting = Counting(assembly.chat.tokenizer)
    monkeypatch.setattr(assembly.chat, "tokenizer", counting)
    body = json.loads(json.dumps(LONG_BODIES[path]).replace(LONG, TEXT * 40_000))

    async def work(served):
        most = served.server.max_characters
        async with served.http() as http:
            answer = await http.post(path, json={"model": "tiny", **body})
        return most, answer.status_code, answer.json()["error"]

    most, status, error = played(assembly, work)
    assert most < 40_000 * len(TEXT) < MEBIBYTE
    assert status == 400
    assert "maximum context length is 768 tokens; the messages have 760000 characters" in error["message"]
    assert counting.characters < 1000


def test_text_that_fits_has_at_most_the_allowed_characters(assembly):
    """Compute the bound: the longest token times the context length."""
    tokenizer = assembly.chat.tokenizer
    longest = max(tokenizer.get_vocab(), key=len)

    async def work(served):
        return served.server.max_characters

    assert played(assembly, work) == 768 * len(longest)


def test_other_requests_are_served_during_the_tokenization_of_a_long_text(assembly, monkeypatch):
    """Send health requests between the start and the end of one tokenization."""
    monkeypatch.setattr("whetstone.chat.api.request_fields._LONG", 100)
    states = []

    async def work(served):
        original = served.assembly.chat.open
        loop = asyncio.get_running_loop()
        answered = asyncio.Event()

        def slow(*args):
            states.append("start")
            asyncio.run_coroutine_threadsafe(answered.wait(), loop).result(60)
            states.append("end")
            return original(*args)

        monkeypatch.setattr(served.assembly.chat, "open", slow)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "word " * 50}]}
        async with served.http() as http:
            asking = asyncio.ensure_future(http.post("/v1/messages/count_tokens", json=body))
            while not (states or asking.done()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            states.append((await http.get("/health")).status_code)
            answered.set()
            await asking

    played(assembly, work)
    assert states == ["start", 200, "end"]


def test_stop_sequence_has_a_bounded_length():
    assert parse_stops(["x" * 1000]) == ("x" * 1000,)
    with pytest.raises(RefusedError, match="1 to 1000 characters"):
        parse_stops("x" * 1001)


# ---------------------------------------------------------------------------------------------------- numbers


@given(text=st.text(max_size=5) | st.integers(-5, 10**6).map(str))
@example("\u0661")
@example("1_0")
@example("+1")
@example(" 1")
@example("1.0")
@example("9" * 5000)
def test_integer_is_ascii_digits_only(text):
    if text and set(text) <= set("0123456789") and int(text[:25]) < 2**63 and len(text) < 20:
        assert whole_number(text, "turn") == int(text)
    else:
        with pytest.raises(RefusedError, match="turn: a whole number from 0"):
            whole_number(text, "turn")


@pytest.mark.parametrize("value", [True, False, None, 1.0, 1.5, -1, 2**63, [1], {"a": 1}, b"1"])
def test_value_that_is_no_json_integer_is_rejected(value):
    with pytest.raises(RefusedError):
        whole_number(value, "turn")


@pytest.mark.parametrize("text", ["nan", "inf", "1e3", "-1", "+1", " 1", "1_0", "\u0661", "", "1.", ".5", "9" * 400])
def test_seconds_are_ascii_digits_with_a_point(text):
    assert parse_seconds("0", "wait") == 0
    assert parse_seconds("2.5", "wait") == 2.5
    with pytest.raises(RefusedError):
        parse_seconds(text, "wait")


NUMBERS = ["\u0661", "1_0", "+0", " 0", "0 ", "-0", "1.0", "0x0", "9" * 5000, "00000000000000000000"]


@pytest.mark.parametrize("number", NUMBERS)
def test_no_route_reads_another_number_from_a_path_query_header_or_body(assembly, number):
    async def work(served):
        async with served.http() as http:
            await http.post(f"/episodes/e{CHAT}", json={"model": "tiny", "messages": HI, "max_tokens": 1})
            seat = (await http.post("/v1/people/seats", json={"about": "x"})).json()["id"]
            await http.post(f"/v1/people/seats/{seat}/turns", json={"turn": 0, "messages": []})
            ask = {"model": "tiny", "messages": HI, "max_tokens": 1}
            bias = {**ask, "logit_bias": {number: 1}}
            answers = [
                await http.post("/v1/episodes/e/reward", json={"turns": {number: 0.5}}),
                await http.post("/v1/episodes/e/reward", json={"turn": number, "reward": 0.5}),
                await http.get(f"/v1/people/seats/{seat}/turns/{number}"),
                await http.get(f"/v1/people/seats/{seat}/turns/0", params={"wait": number}),
                await http.post("/v1/episodes", json={"seed": number}),
                await http.post(CHAT, json=bias),
            ]
            if number.isascii():
                header = {"x-whetstone-seed": number if number.strip() == number else f"{number}_"}
                answers.append(await http.post(CHAT, json=ask, headers=header))
        return [answer.status_code for answer in answers], served.episodes.get(Key("", "", "admin"), "e").turn_rewards

    statuses, rewards = played(assembly, work)
    if number == "1.0":
        statuses.pop(3)  # seconds may have a point
    assert set(statuses) == {400}
    assert rewards == {}


def test_response_is_rewarded_once_per_request(assembly):
    async def work(served):
        async with served.http() as http:
            await http.post(f"/episodes/e{CHAT}", json={"model": "tiny", "messages": HI, "max_tokens": 1})
            bodies = ({"turns": {"0": 1, "00": 0.5}}, {"turns": {"0": 1}, "turn": 0, "reward": 0.5})
            statuses = [(await http.post("/v1/episodes/e/reward", json=body)).status_code for body in bodies]
        return statuses, served.episodes.get(Key("", "", "admin"), "e").turn_rewards

    assert played(assembly, work) == ([400, 400], {})


# ------------------------------------------------------------------------------------------- seats and notes


def test_seats_and_notes_of_a_key_have_a_limit_of_bytes_that_does_not_affect_other_keys():
    queue = PeopleQueue(max_bytes=10_000)
    first = queue.open_seat(about="x" * 4000, seconds=60, owner="a")
    message = {"role": "user", "content": "x" * 4000}
    queue.request_message(first.id, 0, [message])
    for store in (
        lambda: queue.open_seat(about="x" * 4000, seconds=60, owner="a"),
        lambda: queue.store_note("x" * 4000, episode="e", answer=0, by="a", owner="a"),
    ):
        with pytest.raises(RefusedError, match="bytes of 10000") as refused:
            store()
        assert refused.value.status == 429
    queue.open_seat(about="x" * 4000, seconds=60, owner="b")
    queue.store_note("x" * 4000, episode="e", answer=0, by="b", owner="b")
    queue.close(first.id)
    queue.open_seat(about="x" * 4000, seconds=60, owner="a")


def test_turn_of_a_seat_counts(tmp_path):
    queue = PeopleQueue(tmp_path / "people.jsonl", max_bytes=1000)
    seat = queue.open_seat(about="", seconds=60, owner="a")
    with pytest.raises(RefusedError, match="bytes of 1000"):
        queue.request_message(seat.id, 0, [{"role": "user", "content": "x" * 1000}])
    assert "asked" not in (tmp_path / "people.jsonl").read_text()


def test_sizes_are_restored_after_a_restart_and_deleted_notes_do_not_count(tmp_path):
    queue = PeopleQueue(tmp_path / "people.jsonl", max_bytes=2000)
    queue.store_note("x" * 1500, episode="e", answer=0, by="a", owner="a")
    reloaded = PeopleQueue(tmp_path / "people.jsonl", max_bytes=2000)
    for each in (queue, reloaded):
        with pytest.raises(RefusedError):
            each.store_note("x" * 1000, episode="f", answer=0, by="a", owner="a")
    reloaded.forget_episode("e")
    reloaded.store_note("x" * 1000, episode="f", answer=0, by="a", owner="a")


def test_number_of_seats_per_key_is_bounded(monkeypatch):
    monkeypatch.setattr("whetstone.serving.human_in_the_loop.queue._MOST_OF_A_KEY", 3)
    queue = PeopleQueue()
    seats = [queue.open_seat(about="", seconds=60, owner="a") for _ in range(3)]
    with pytest.raises(RefusedError, match="3 open seats"):
        queue.open_seat(about="", seconds=60, owner="a")
    queue.open_seat(about="", seconds=60, owner="b")
    for seat in seats:
        queue.close(seat.id)
        queue.open_seat(about="", seconds=60, owner="a")
    for _ in range(20):
        queue.close(next(seat.id for seat in queue.open_seats() if seat.owner == "a"))
        queue.open_seat(about="", seconds=60, owner="a")
    assert sum(seat.owner == "a" for seat in queue.seats.values()) <= 6


def test_too_large_note_leaves_no_rating(assembly):
    keys = keys_of(Ada="reward")

    async def work(served):
        served.people.max_bytes = 1000
        async with served.http(headers={"x-api-key": "Ada"}) as http:
            await http.post(f"/episodes/e{CHAT}", json={"model": "tiny", "messages": HI, "max_tokens": 1})
            answer = await http.post("/v1/episodes/e/rate", json={"rating": 1, "note": "x" * 2000})
        (episode,) = served.episodes
        return answer.status_code, episode.turn_rewards, list(served.people.notes)

    assert played(assembly, work, keys=keys, engine=Scripted(assembly, "a")) == (429, {}, [])
