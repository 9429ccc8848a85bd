"""Several people and one queue: who holds which seat, until when, and what a kill leaves of it."""

import asyncio

import pytest

from tests_chromium import served_at_a_port
from tests_served import made, played
from whetstone.chat import assistant
from whetstone.chat.api.asked import RefusedError
from whetstone.environments import USERS
from whetstone.environments.tool_environment import ToolEnvironment
from whetstone.errors import InfrastructureError, RunDirectoryError
from whetstone.plugins import OptionError
from whetstone.serving import Key, Keys
from whetstone.serving.access import hashed_key
from whetstone.serving.people import PeopleQueue
from whetstone.trajectory import EndReason, Task

HELLO = [{"role": "assistant", "content": "How can I help?"}]


class Clock:
    """Time that passes when it is told to."""

    now = 1000.0

    def __call__(self):
        return self.now


def queue_of(path=None, *, waiting=0, claim_seconds=60.0):
    """(a queue, its clock, ids of seats that wait)"""
    clock = Clock()
    queue = PeopleQueue(path, claim_seconds=claim_seconds, clock=clock)
    ids = []
    for number in range(waiting):
        ids.append(queue.open(about=f"task {number}", seconds=600).id)
        clock.now += 1
        queue.ask(ids[-1], 0, HELLO)
    return queue, clock, ids


def test_nobody_is_given_what_another_holds_and_who_waits_the_longest_comes_first():
    queue, _, ids = queue_of(waiting=3)
    assert [queue.claim(who).id for who in ("Ada", "Bo", "Cy")] == ids
    assert queue.claim("Di") is None
    assert queue.claim("Ada").id == ids[0]  # his own, again
    with pytest.raises(RefusedError, match="Bo has claimed it"):
        queue.claim("Ada", ids[1])
    with pytest.raises(RefusedError, match="Bo has claimed it"):
        queue.say(ids[1], "Ada", {"role": "user", "content": "Hi"})


def test_what_somebody_gave_back_goes_to_others_and_never_to_him_again():
    queue, _, (id,) = queue_of(waiting=1)
    queue.claim("Ada")
    queue.release(id, "Ada")
    assert queue.claim("Ada") is None
    assert queue.claim("Bo").id == id
    with pytest.raises(RefusedError, match="Bo has claimed it"):
        queue.release(id, "Ada")


def test_a_claim_ends_at_its_deadline_and_a_seat_at_that_of_its_turn():
    queue, clock, (id,) = queue_of(waiting=1)
    queue.claim("Ada")
    clock.now += 59
    assert queue.claim("Bo") is None
    clock.now += 1
    with pytest.raises(RefusedError, match="claim it first"):
        queue.say(id, "Ada", {"role": "user", "content": "late"})
    assert queue.claim("Ada") is None
    assert queue.claim("Bo").id == id
    clock.now += 600
    assert queue.claim("Cy") is None
    assert queue.get(id).over == "deadline"
    with pytest.raises(RefusedError, match="the seat is over: deadline"):
        queue.say(id, "Bo", {"role": "user", "content": "too late"})


def test_who_speaks_keeps_the_seat_while_the_agent_is_at_work():
    queue, clock, (id,) = queue_of(waiting=1)
    queue.claim("Ada")
    queue.say(id, "Ada", {"role": "user", "content": "Hi"})
    clock.now += 500
    with pytest.raises(RefusedError, match="nothing is waited for"):
        queue.say(id, "Ada", {"role": "user", "content": "Hello?"})
    queue.ask(id, 1, [{"role": "assistant", "content": "Well?"}])
    assert (
        queue.ask(id, 1, [{"role": "assistant", "content": "Well?"}]).asked == 2
    )  # asked once more, as after a failure
    queue.say(id, "Ada", {"role": "user", "content": "Bye"}, ended=True)
    assert [message["content"] for message in queue.get(id).messages] == ["How can I help?", "Hi", "Well?", "Bye"]
    with pytest.raises(RefusedError, match="the seat is over"):
        queue.ask(id, 2, [])


@pytest.mark.parametrize("torn", [b"", b'{"said": "'])
def test_a_queue_that_was_killed_goes_on_with_all_anybody_was_told(tmp_path, torn):
    path = tmp_path / "people.jsonl"
    queue, clock, ids = queue_of(path, waiting=3)
    queue.claim("Ada")
    queue.say(ids[0], "Ada", {"role": "user", "content": "Hi"})
    queue.claim("Bo")
    queue.release(ids[1], "Bo")
    queue.note("unclear", episode="e", answer=0, by="Ada")
    with path.open("ab") as file:
        file.write(torn)
    again = PeopleQueue(path, claim_seconds=60.0, clock=clock)
    assert again.seats == queue.seats
    assert again.notes == queue.notes
    assert again.claim("Bo").id == ids[2]
    assert PeopleQueue(path, clock=clock).seats == again.seats
    again.ask(again.open(about="held", seconds=60, kind="policy", episode="e").id, 0, HELLO)
    again.forget("e")
    assert PeopleQueue(path, clock=clock).seats.keys() == again.seats.keys() == set(ids)
    assert b"unclear" not in path.read_bytes()
    assert b"held" not in path.read_bytes()
    path.write_bytes(b"{]\n" + path.read_bytes())
    with pytest.raises(RunDirectoryError, match=r"people\.jsonl:1: is damaged"):
        PeopleQueue(path)


def test_many_people_at_once_share_out_the_queue_without_a_double(tmp_path):
    async def work(served):
        for number in range(12):
            seat = served.people.open(about=str(number), seconds=600)
            served.people.ask(seat.id, 0, HELLO)
        http, given = served.http(), []

        async def person(name):
            while (told := (await http.post("/v1/people/claim", json={"by": name})).json()["seat"]) is not None:
                given.append(told["id"])
                said = {"by": name, "content": "Thanks.", "ended": True}
                assert (await http.post(f"/v1/people/seats/{told['id']}/say", json=said)).status_code == 200

        await asyncio.gather(*(person(f"p{number}") for number in range(5)))
        assert len(given) == len(set(given)) == 12

    played(made(), work)


class Person:
    """Who sits at the page, by script."""

    def __init__(self, served, *words, ends=True):
        self.served, self.words, self.heard, self.ends = served, list(words), [], ends

    async def sit(self):
        """Take the next seat and say all one has to."""
        http = self.served.http()
        while self.words:
            told = (await http.post("/v1/people/claim", json={"by": "Ada"})).json()["seat"]
            if told is None:
                await asyncio.sleep(0.01)
                continue
            self.heard.append((told["about"], told["messages"][-1]["content"] if told["messages"] else ""))
            said = {"by": "Ada", "content": self.words.pop(0), "ended": self.ends and not self.words}
            await http.post(f"/v1/people/seats/{told['id']}/say", json=said)


def episode_at(address, answers, *, seconds=30.0):
    """How an episode ends in which a person is the user, and what became of him."""

    async def play():
        user = USERS["human"]
        world = ToolEnvironment(user=lambda: user(url=address, seconds=seconds))
        try:
            seen = await world.reset(Task("t", "Cancel order 7."), seed=0)
            heard = [seen.messages[-1].text]
            for answer in answers:
                result = await world.step(assistant(answer))
                heard += [message.text for message in result.observation.messages]
                if result.ended is not None:
                    return heard, result.ended, await world.verdict()
            return heard, None, await world.verdict()
        finally:
            await world.close()

    return play()


def test_a_person_takes_the_users_seat_in_a_test_of_an_agent():
    async def work(served):
        person = Person(served, "Cancel order 7, please.", "Yes.", "Thank you.")
        async with served_at_a_port(served.app) as address:
            found, _ = await asyncio.gather(episode_at(address, ["Really?", "Done."]), person.sit())
        assert found == (
            ["Cancel order 7, please.", "Yes.", "Thank you."],
            EndReason.TERMINATED,
            {"user_ended": True, "user_answers": 3, "user_left": "ended"},
        )
        assert person.heard == [("Cancel order 7.", ""), ("Cancel order 7.", "Really?"), ("Cancel order 7.", "Done.")]

    played(made(), work)


def test_a_person_who_says_nothing_in_time_ends_the_episode_as_data_and_one_who_never_came_as_no_episode():
    async def work(served):
        person = Person(served, "Cancel order 7, please.", ends=False)
        async with served_at_a_port(served.app) as address:
            playing = episode_at(address, ["Really?", "Done."], seconds=2.0)
            (heard, ended, verdict), _ = await asyncio.gather(playing, person.sit())
            assert (heard, ended) == (["Cancel order 7, please."], EndReason.TIMEOUT)
            assert (ended.valid, ended.cut_short) == (True, True)
            assert verdict == {"user_ended": False, "user_answers": 1, "user_left": "deadline"}
            with pytest.raises(InfrastructureError, match=r"nobody at http.* took the user's seat within 0\.2 s"):
                await episode_at(address, [], seconds=0.2)

    played(made(), work)


@pytest.mark.slow
def test_where_no_server_answers_there_is_no_episode():
    with pytest.raises(InfrastructureError, match="asked"):
        asyncio.run(episode_at("http://127.0.0.1:9", []))


def test_a_seat_is_seen_by_its_own_key_and_by_whoever_may_sit():
    keys = Keys({hashed_key(name): Key(name, hashed_key(name), role) for name, role in (
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
        assert (await ask("Ada", "POST", "/claim", by="somebody else"))[1]["seat"]["by"] == "Ada"
        assert (await ask("Ada", "POST", f"/seats/{id}/say", content=""))[0] == 400
        assert (await ask("Ada", "POST", f"/seats/{id}/say", content="Hi"))[0] == 200
        assert (await ask("tester", "GET", f"/seats/{id}/turns/0"))[1]["said"]["message"]["content"] == "Hi"
        assert (await ask("tester", "GET", f"/seats/{id}/turns/1"))[0] == 404
        for body in ({"turn": 1.5}, {"turn": 1, "messages": {}}, {"turn": 3, "messages": []}):
            assert (await ask("tester", "POST", f"/seats/{id}/turns", **body))[0] in (400, 409)
        for seconds in (0, -1, 1e9, "x"):
            assert (await ask("tester", "POST", "/seats", seconds=seconds))[0] == 400
        assert (await ask("tester", "DELETE", f"/seats/{id}"))[1]["over"] == "closed"

    played(made(), work, keys=keys)


def test_a_user_who_is_a_person_says_what_is_wrong_with_his_options():
    with pytest.raises(OptionError, match="above 0, and a day at most"):
        USERS["human"](url="http://127.0.0.1:1", seconds=0)
