"""Several people and one queue: claims of seats, deadlines, and recovery after a kill."""

import asyncio

import pytest

from support.chromium import served_at_a_port
from support.served_policy import build_assembly, played
from whetstone.chat import assistant
from whetstone.chat.api.requests import RefusedError
from whetstone.environments import USERS
from whetstone.environments.tool_environment import ToolEnvironment
from whetstone.errors import InfrastructureError, RunDirectoryError
from whetstone.plugins import OptionError
from whetstone.serving import Key, Keys
from whetstone.serving.api_keys import hash_key
from whetstone.serving.human_in_the_loop import PeopleQueue
from whetstone.trajectory import EndReason, Task

HELLO = [{"role": "assistant", "content": "How can I help?"}]


class Clock:
    """A clock that a test advances."""

    now = 1000.0

    def __call__(self):
        return self.now


def make_queue(path=None, *, waiting=0, claim_seconds=60.0):
    """Return (a queue, its clock, ids of waiting seats)."""
    clock = Clock()
    queue = PeopleQueue(path, claim_seconds=claim_seconds, clock=clock)
    ids = []
    for number in range(waiting):
        ids.append(queue.open_seat(about=f"task {number}", seconds=600).id)
        clock.now += 1
        queue.request_message(ids[-1], 0, HELLO)
    return queue, clock, ids


def test_claimed_seats_are_exclusive_and_the_longest_waiting_is_first():
    queue, _, ids = make_queue(waiting=3)
    assert [queue.claim_seat(who).id for who in ("Ada", "Bo", "Cy")] == ids
    assert queue.claim_seat("Di") is None
    assert queue.claim_seat("Ada").id == ids[0]  # the claimed seat again
    with pytest.raises(RefusedError, match="Bo has claimed this seat"):
        queue.claim_seat("Ada", ids[1])
    with pytest.raises(RefusedError, match="Bo has claimed this seat"):
        queue.store_message(ids[1], "Ada", {"role": "user", "content": "Hi"})


def test_returned_seat_goes_to_other_people_only():
    queue, _, (id,) = make_queue(waiting=1)
    queue.claim_seat("Ada")
    queue.release_seat(id, "Ada")
    assert queue.claim_seat("Ada") is None
    assert queue.claim_seat("Bo").id == id
    with pytest.raises(RefusedError, match="Bo has claimed this seat"):
        queue.release_seat(id, "Ada")


def test_claim_ends_at_its_deadline_and_a_seat_at_that_of_its_turn():
    queue, clock, (id,) = make_queue(waiting=1)
    queue.claim_seat("Ada")
    clock.now += 59
    assert queue.claim_seat("Bo") is None
    clock.now += 1
    with pytest.raises(RefusedError, match="claim it first"):
        queue.store_message(id, "Ada", {"role": "user", "content": "late"})
    assert queue.claim_seat("Ada") is None
    assert queue.claim_seat("Bo").id == id
    clock.now += 600
    assert queue.claim_seat("Cy") is None
    assert queue.get(id).over == "deadline"
    with pytest.raises(RefusedError, match="the seat is over: deadline"):
        queue.store_message(id, "Bo", {"role": "user", "content": "too late"})


def test_speaker_keeps_the_seat_while_the_agent_works():
    queue, clock, (id,) = make_queue(waiting=1)
    queue.claim_seat("Ada")
    queue.store_message(id, "Ada", {"role": "user", "content": "Hi"})
    clock.now += 500
    with pytest.raises(RefusedError, match="no message is requested"):
        queue.store_message(id, "Ada", {"role": "user", "content": "Hello?"})
    queue.request_message(id, 1, [{"role": "assistant", "content": "Well?"}])
    assert (
        queue.request_message(id, 1, [{"role": "assistant", "content": "Well?"}]).num_requested == 2
    )  # requested again, as after a failure
    queue.store_message(id, "Ada", {"role": "user", "content": "Bye"}, ended=True)
    assert [message["content"] for message in queue.get(id).messages] == ["How can I help?", "Hi", "Well?", "Bye"]
    with pytest.raises(RefusedError, match="the seat is over"):
        queue.request_message(id, 2, [])


@pytest.mark.parametrize("torn", [b"", b'{"said": "'])
def test_killed_queue_restores_all_confirmed_changes(tmp_path, torn):
    path = tmp_path / "people.jsonl"
    queue, clock, ids = make_queue(path, waiting=3)
    queue.claim_seat("Ada")
    queue.store_message(ids[0], "Ada", {"role": "user", "content": "Hi"})
    queue.claim_seat("Bo")
    queue.release_seat(ids[1], "Bo")
    queue.store_note("unclear", episode="e", answer=0, by="Ada")
    with path.open("ab") as file:
        file.write(torn)
    reopened = PeopleQueue(path, claim_seconds=60.0, clock=clock)
    assert reopened.seats == queue.seats
    assert reopened.notes == queue.notes
    assert reopened.claim_seat("Bo").id == ids[2]
    assert PeopleQueue(path, clock=clock).seats == reopened.seats
    reopened.request_message(reopened.open_seat(about="held", seconds=60, kind="policy", episode="e").id, 0, HELLO)
    reopened.forget_episode("e")
    assert PeopleQueue(path, clock=clock).seats.keys() == reopened.seats.keys() == set(ids)
    assert b"unclear" not in path.read_bytes()
    assert b"held" not in path.read_bytes()
    path.write_bytes(b"{]\n" + path.read_bytes())
    with pytest.raises(RunDirectoryError, match=r"people\.jsonl:1: is damaged"):
        PeopleQueue(path)


def test_concurrent_people_share_the_queue_without_duplicates(tmp_path):
    async def work(served):
        for number in range(12):
            seat = served.people.open_seat(about=str(number), seconds=600)
            served.people.request_message(seat.id, 0, HELLO)
        http, claimed = served.http(), []

        async def person(name):
            while (seat := (await http.post("/v1/people/claim", json={"by": name})).json()["seat"]) is not None:
                claimed.append(seat["id"])
                reply = {"by": name, "content": "Thanks.", "ended": True}
                assert (await http.post(f"/v1/people/seats/{seat['id']}/say", json=reply)).status_code == 200

        await asyncio.gather(*(person(f"p{number}") for number in range(5)))
        assert len(claimed) == len(set(claimed)) == 12

    played(build_assembly(), work)


class ScriptedPerson:
    """A person at the page, by script."""

    def __init__(self, served, *words, ends=True):
        self.served, self.words, self.heard, self.ends = served, list(words), [], ends

    async def sit(self):
        """Claim the next seat and send all words."""
        http = self.served.http()
        while self.words:
            seat = (await http.post("/v1/people/claim", json={"by": "Ada"})).json()["seat"]
            if seat is None:
                await asyncio.sleep(0.01)
                continue
            self.heard.append((seat["about"], seat["messages"][-1]["content"] if seat["messages"] else ""))
            reply = {"by": "Ada", "content": self.words.pop(0), "ended": self.ends and not self.words}
            await http.post(f"/v1/people/seats/{seat['id']}/say", json=reply)


def play_with_person(address, answers, *, seconds=30.0):
    """Play an episode with a person as the user; return messages, end reason and verdict."""

    async def play():
        user = USERS["human"]
        world = ToolEnvironment(user=lambda: user(url=address, seconds=seconds))
        try:
            seen = await world.reset(Task("t", "Cancel order 7."), seed=0)
            received = [seen.messages[-1].text]
            for answer in answers:
                result = await world.step(assistant(answer))
                received += [message.text for message in result.observation.messages]
                if result.ended is not None:
                    return received, result.ended, await world.verdict()
            return received, None, await world.verdict()
        finally:
            await world.close()

    return play()


def test_person_is_the_user_in_an_evaluation_of_an_agent():
    async def work(served):
        person = ScriptedPerson(served, "Cancel order 7, please.", "Yes.", "Thank you.")
        async with served_at_a_port(served.app) as address:
            result, _ = await asyncio.gather(play_with_person(address, ["Really?", "Done."]), person.sit())
        assert result == (
            ["Cancel order 7, please.", "Yes.", "Thank you."],
            EndReason.TERMINATED,
            {"user_ended": True, "user_answers": 3, "user_left": "ended"},
        )
        assert person.heard == [("Cancel order 7.", ""), ("Cancel order 7.", "Really?"), ("Cancel order 7.", "Done.")]

    played(build_assembly(), work)


def test_silent_person_ends_the_episode_and_an_absent_one_is_an_infrastructure_failure():
    async def work(served):
        person = ScriptedPerson(served, "Cancel order 7, please.", ends=False)
        async with served_at_a_port(served.app) as address:
            playing = play_with_person(address, ["Really?", "Done."], seconds=2.0)
            (received, ended, verdict), _ = await asyncio.gather(playing, person.sit())
            assert (received, ended) == (["Cancel order 7, please."], EndReason.TIMEOUT)
            assert (ended.valid, ended.cut_short) == (True, True)
            assert verdict == {"user_ended": False, "user_answers": 1, "user_left": "deadline"}
            with pytest.raises(InfrastructureError, match=r"no person at http.* took the user's seat within 0\.2 s"):
                await play_with_person(address, [], seconds=0.2)

    played(build_assembly(), work)


@pytest.mark.slow
def test_unreachable_server_is_an_infrastructure_failure():
    with pytest.raises(InfrastructureError, match="failed after"):
        asyncio.run(play_with_person("http://127.0.0.1:9", []))


def test_seat_is_visible_to_its_key_and_to_allowed_people():
    keys = Keys({hash_key(name): Key(name, hash_key(name), role) for name, role in (
        ("tester", "use"), ("other", "use"), ("Ada", "reward"))})  # fmt: skip

    async def work(served):
        async def ask(key, method, path, **body):
            answer = await served.http().request(method, f"/v1/people{path}", json=body, headers={"x-api-key": key})
            return answer.status_code, answer.json()

        id = (await ask("tester", "POST", "/seats", about="x", seconds=60))[1]["id"]
        assert (await ask("tester", "POST", f"/seats/{id}/turns", turn=0, messages=HELLO))[0] == 200
        assert (await ask("other", "GET", f"/seats/{id}"))[0] == 404
        assert (await ask("other", "GET", f"/seats/{id}/turns/0"))[0] == 404
        assert (await ask("tester", "POST", "/claim", by="Ada"))[0] == 403
        assert (await ask("tester", "GET", "/seats"))[0] == 403
        assert (await ask("Ada", "POST", "/claim", by="another person"))[1]["seat"]["by"] == "Ada"
        assert (await ask("Ada", "POST", f"/seats/{id}/say", content=""))[0] == 400
        assert (await ask("Ada", "POST", f"/seats/{id}/say", content="Hi"))[0] == 200
        assert (await ask("tester", "GET", f"/seats/{id}/turns/0"))[1]["said"]["message"]["content"] == "Hi"
        assert (await ask("tester", "GET", f"/seats/{id}/turns/1"))[0] == 404
        for body in ({"turn": 1.5}, {"turn": 1, "messages": {}}, {"turn": 3, "messages": []}):
            assert (await ask("tester", "POST", f"/seats/{id}/turns", **body))[0] in (400, 409)
        for seconds in (0, -1, 1e9, "x"):
            assert (await ask("tester", "POST", "/seats", seconds=seconds))[0] == 400
        assert (await ask("tester", "DELETE", f"/seats/{id}"))[1]["over"] == "closed"

    played(build_assembly(), work, keys=keys)


def test_user_component_for_people_reports_invalid_options():
    with pytest.raises(OptionError, match="above 0 and at most 86400"):
        USERS["human"](url="http://127.0.0.1:1", seconds=0)
