"""Remote environments: built-in environments served over HTTP."""

import asyncio
import functools

import httpx2
import pytest

from support.environments import contract, environment_of, source_of
from support.local_servers import by, served
from whetstone.chat import ToolCall, assistant
from whetstone.environments.built_in.bargaining import Dealing
from whetstone.environments.multi_agent import Seat
from whetstone.environments.protocol import SeatRequest
from whetstone.environments.remote.environment_client import Remote, RemoteTasks
from whetstone.environments.remote.environment_server import ServedEpisodes, build_environment_app
from whetstone.environments.remote.http_client import JsonHttpClient
from whetstone.errors import EpisodeError, InfrastructureError, TaskError
from whetstone.evaluation.environment_checks import RandomPolicy, play_with_policy
from whetstone.trajectory import Task


@pytest.fixture(scope="module")
def household():
    """Serve a household; return (address, open episodes)."""
    episodes = ServedEpisodes(functools.partial(environment_of, "household"), capacity=80)
    with served(build_environment_app("household", episodes, source_of("household"))) as url:
        yield url, episodes


def test_served_environment_plays_like_a_local_one(household):
    url, episodes = household
    tasks = RemoteTasks(url=url)
    source = source_of("household")
    for index in range(3):
        task = tasks.task(index)
        assert task == source.task(index)
        near = asyncio.run(
            play_with_policy(
                functools.partial(environment_of, "household"), task, RandomPolicy(1).choose_action, seed=3
            )
        )
        # the remote policy does not receive the admissible commands, so it plays the same actions
        left = iter(near.actions)
        far = asyncio.run(play_with_policy(lambda: Remote(url=url), task, lambda *_, left=left: next(left), seed=3))
        assert far.transcript == near.transcript
    assert tasks.held_out(5) == source.held_out(5)
    assert episodes.open == {}


def test_concurrent_episodes_are_independent(household):
    url, episodes = household
    source = source_of("household")

    async def all_of_them():
        return await asyncio.gather(*(one(seed) for seed in range(40)))

    async def one(seed):
        task = source.task(seed)
        near = await play_with_policy(
            functools.partial(environment_of, "household"),
            task,
            RandomPolicy(seed).choose_action,
            seed=seed,
            max_turns=6,
        )
        left = iter(near.actions)
        far = await play_with_policy(lambda: Remote(url=url), task, lambda *_: next(left), seed=seed, max_turns=6)
        return far.transcript == near.transcript

    assert all(asyncio.run(all_of_them()))
    assert episodes.open == {}


def test_two_seats_of_a_served_game_play_each_other():
    task = Task("d", "", {"worth": {"buyer": 40, "seller": 20}, "rounds": 3})
    episodes = ServedEpisodes(lambda: Seat(Dealing, actions="text"), capacity=4)

    async def play_seat(url, role, words):
        remote = Remote(url=url)
        remote.take_seat(SeatRequest(role, "one game", 7))
        await remote.reset(task, seed=0)
        result = await remote.step(assistant(words))
        verdict = await remote.verdict()
        await remote.close()
        return result.terminated, verdict

    async def both(url):
        return await asyncio.gather(play_seat(url, "buyer", "accept"), play_seat(url, "seller", "offer 31"))

    with served(build_environment_app("bargaining", episodes, None)) as url:
        buyer, seller = asyncio.run(both(url))
    # of a surplus of 20 the buyer has 9, the seller 11
    assert buyer == (True, {"success": True, "score": 0.45, "deal": True})
    assert seller == (True, {"success": True, "score": 0.55, "deal": True})


async def ask(url, method, path, body=None):
    asking = JsonHttpClient(url, tries=1)
    try:
        return await asking.send_request(method, path, body)
    finally:
        await asking.close()


def test_action_that_is_sent_twice_is_executed_once(household):
    url, _ = household

    async def twice():
        id = (await ask(url, "POST", "/episodes", {"protocol": 1}))["id"]
        task = source_of("household").task(0)
        body = {"task": {"id": task.id, "private": dict(task.private)}, "seed": 0}
        await ask(url, "POST", f"/episodes/{id}/reset", body)
        action = assistant("", ToolCall("act", '{"command": "look"}', "c")).to_openai()
        answers = [await ask(url, "POST", f"/episodes/{id}/step", {"turn": 0, "action": action}) for _ in range(3)]
        steps = (await ask(url, "POST", f"/episodes/{id}/verdict", {}))["steps"]
        with pytest.raises(EpisodeError, match="turn 7 does not follow turn 0"):
            await ask(url, "POST", f"/episodes/{id}/step", {"turn": 7, "action": action})
        await ask(url, "DELETE", f"/episodes/{id}")
        with pytest.raises(EpisodeError, match="no open episode"):
            await ask(url, "POST", f"/episodes/{id}/step", {"turn": 1, "action": action})
        return answers, steps

    answers, steps = asyncio.run(twice())
    assert answers[0] == answers[1] == answers[2]
    assert steps == 1


def test_unknown_protocol_and_invalid_task_are_refused(household):
    url, _ = household
    with pytest.raises(TaskError, match="uses protocol 1, the client protocol 9"):
        asyncio.run(ask(url, "POST", "/episodes", {"protocol": 9}))

    async def bad_task():
        environment = Remote(url=url)
        try:
            await environment.reset(Task("x", ""), seed=0)
        finally:
            await environment.close()

    with pytest.raises(TaskError):
        asyncio.run(bad_task())


def test_server_restart_in_an_episode_is_an_infrastructure_error(household):
    url, episodes = household

    async def one():
        environment = Remote(url=url)
        await environment.reset(source_of("household").task(0), seed=0)
        await episodes.close()  # the state that a restart loses
        for question in (environment.step(assistant("look")), environment.verdict()):
            with pytest.raises(InfrastructureError, match=r"no open episode .*: the server restarted"):
                await question
        await environment.close()

    asyncio.run(one())


def test_full_server_refuses_episodes_and_abandoned_episodes_are_closed():
    episodes = ServedEpisodes(functools.partial(environment_of, "household"), capacity=2, idle_seconds=60.0)
    with served(build_environment_app("household", episodes)) as url:

        async def filled():
            for _ in range(2):
                await ask(url, "POST", "/episodes", {"protocol": 1})
            with pytest.raises(InfrastructureError, match=r"429.*2 episodes are open"):
                await ask(url, "POST", "/episodes", {"protocol": 1})
            for episode in episodes.open.values():
                episode.last_used -= 100
            await ask(url, "POST", "/episodes", {"protocol": 1})

        asyncio.run(filled())
        assert episodes.reaped == 2
        with pytest.raises(TaskError, match="no tasks"):
            RemoteTasks(url=url)


def test_stopped_server_invalidates_the_episode_and_closing_succeeds():
    async def stopped():
        environment = Remote(url="http://127.0.0.1:9")
        with pytest.raises(InfrastructureError, match="failed after 3 attempts"):
            await environment.reset(Task("x", ""), seed=0)
        await environment.close()

    asyncio.run(stopped())
    assert contract("sokoban").make().specs  # other environments are unaffected


def answered(url, method, path, *, body=None, **headers):
    """Send one request; return (status, body)."""
    import httpx2

    with httpx2.Client(base_url=url, timeout=60) as client:
        response = client.request(
            method, path, content=body, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )
    return response.status_code, response.json()


def test_requests_of_web_pages_and_other_host_names_are_refused(household):
    url, _ = household
    assert answered(url, "GET", "/health")[0] == 200
    assert answered(url, "GET", "/tasks/0", Host="localhost:1")[0] == 200
    for headers in ({"Host": "evil.example"}, {"Host": "127.0.0.1.evil.example"}, {"Origin": "http://evil.example"}):
        for method, path in (("GET", "/tasks/0"), ("GET", "/health"), ("POST", "/episodes")):
            assert answered(url, method, path, **headers)[0] == 403


def test_requests_without_the_token_are_refused(monkeypatch):
    episodes = ServedEpisodes(functools.partial(environment_of, "household"))
    with served(build_environment_app("household", episodes, source_of("household"), token="secret")) as url:
        for headers in (
            {},
            {"Authorization": "Bearer other"},
            {"Authorization": "secretly"},
        ):
            assert answered(url, "GET", "/tasks/0", **headers)[0] == 401
        assert answered(url, "GET", "/tasks/0", Authorization="Bearer secret", Host="elsewhere:1")[0] == 200
        with pytest.raises(TaskError, match="the token is missing or wrong; set WHETSTONE_TOKEN"):
            RemoteTasks(url=url)
        monkeypatch.setenv("WHETSTONE_TOKEN", "secret")
        assert RemoteTasks(url=url).task(0).private

        async def begun():
            environment = Remote(url=url)
            await environment.reset(RemoteTasks(url=url).task(0), seed=0)
            await environment.close()

        asyncio.run(begun())


def test_excessive_requests_are_refused_without_blocking(household):
    url, episodes = household
    assert answered(url, "POST", "/episodes", body=b"x" * (17 << 20))[0] == 413
    status, body = answered(url, "GET", "/held_out/3000000")
    assert (status, body["error"]) == (422, "TaskError: 3000000 tasks were requested at once; request 4096 or fewer")

    async def unused():
        before = set(episodes.open)
        id = await episodes.open_episode()
        episodes.open[id].last_used -= 90
        await episodes.close_idle_episodes()
        return set(episodes.open) == before

    assert asyncio.run(unused())


HOSTILE = {
    "somebody writes as the policy": {"observation": {"author": "policy"}},
    "somebody writes as an expert": {"observation": {"author": "expert"}},
    "a reward that is no number": {"reward": "NaN"},
    "a reward without bounds": {"reward": 1e999},
    "a reason nobody knows": {"reason": "magic"},
    "calls of another shape": {"calls": [{"x": 1}]},
    "no observation": {"observation": None},
    "a text": "a text",
    "a message of a role nobody has": {"observation": {"messages": [{"role": "robot", "content": "x"}]}},
    "a text that is no text": {
        "observation": {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}
    },
    "a tool without a name": {"observation": {"tools": [{"function": {"name": {}, "parameters": {}}}]}},
    "a tool without a schema": {"observation": {"tools": [{"function": {"name": "f", "parameters": "x"}}]}},
    "tools that are no list": {"observation": {"tools": 5}},
    "a word that is a list": {"observation": {"declared": {"variables": []}}},
    "a record of another kind": {"calls": [{"name": [], "outcome": "ok", "seconds": 0.1}]},
    "a record of seconds that are none": {"calls": [{"name": "f", "outcome": "ok", "seconds": []}]},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_invalid_answers_of_a_hostile_server_are_refused(what):
    fine = {"messages": [{"role": "user", "content": "x"}], "tools": [], "declared": {}, "author": "environment"}
    answer = {"observation": fine, "reward": 1.0, "terminated": False, "truncated": False, "reason": None, "calls": []}
    change = HOSTILE[what]
    if isinstance(change, dict):
        inner = change.get("observation", fine)
        changed = {**answer, **change, "observation": inner and {**fine, **inner}}
    else:
        changed = change

    async def play_one():
        environment = Remote(url="http://nowhere")

        async def ask(method, path, body=None):
            return {"id": "1"} if path == "/episodes" else fine if path.endswith("reset") else changed

        environment._asking.send_request = ask
        await environment.reset(Task("x", ""), seed=0)
        await environment.step(assistant("y"))

    with pytest.raises(InfrastructureError, match="http://nowhere: the response is invalid: "):
        asyncio.run(play_one())


BODIES = [b"", b"5", b'"x"', b"[]", b"null", b"\xff", b"[" * 5000, b'{"turn": 0}', b'{"turn": 0, "action": "x"}']
BODIES += [b'{"turn": 1e999, "action": {}}', b'{"turn": 0, "action": {"role": "assistant", "tool_calls": "x"}}']
BODIES += [b'{"task": 5, "seed": 0}', b'{"task": {"id": 5}, "seed": 0}', b'{"task": {"id": "x"}, "seed": [1]}']


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_invalid_request_is_refused_and_the_server_continues(household, body):
    url, _ = household
    id = answered(url, "POST", "/episodes", body=b'{"protocol": 1}')[1]["id"]
    for path in ("/episodes", f"/episodes/{id}/reset", f"/episodes/{id}/step"):
        status, response = answered(url, "POST", path, body=body)
        assert status in (409, 422)
        assert "\n" not in response["error"]
    assert answered(url, "DELETE", f"/episodes/{id}")[0] == 200


@pytest.mark.parametrize(("length", "status"), [(b"\xb3", 422), (b"-1", 422), (b"x", 422), (b"9" * 5000, 413)])
def test_invalid_content_length_is_refused(length, status):
    sent = []

    async def request():
        async def receive():
            return {"type": "http.request", "body": b""}

        async def send(message):
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"content-length", length)]
        scope = {"type": "http", "method": "POST", "path": "/episodes", "headers": headers, "query_string": b""}
        await build_environment_app("x", ServedEpisodes(functools.partial(environment_of, "household")))(
            scope, receive, send
        )

    asyncio.run(request())
    assert sent[0]["status"] == status


class EndlessBody(httpx2.AsyncByteStream):
    """A body that is generated while it is read."""

    def __init__(self, pieces):
        self.pieces = pieces

    async def __aiter__(self):
        async for piece in self.pieces:
            yield piece


def answer_requests(monkeypatch, *answers):
    """Answer requests with these in turn, repeating the last: (status, headers, body)."""
    left = list(answers)

    def answer(request):
        status, headers, body = left.pop(0) if len(left) > 1 else left[0]
        stream = httpx2.ByteStream(body) if isinstance(body, bytes) else EndlessBody(body)
        return httpx2.Response(status, headers=headers, stream=stream)

    real = httpx2.AsyncClient
    monkeypatch.setattr(
        httpx2, "AsyncClient", lambda **options: real(**options, transport=httpx2.MockTransport(answer))
    )


STRANGE = [b"", b"5", b'"x"', b"[]", b"{}", b'{"id": 5}', b'{"id": []}', b"\xff\xfe", b"[" * 5000, b"NaN"]


@pytest.mark.parametrize("body", STRANGE, ids=range(len(STRANGE)))
@pytest.mark.parametrize("headers", [{}, {"content-type": "application/json; charset=idna"}], ids=["plain", "charset"])
def test_invalid_answer_is_an_infrastructure_error(monkeypatch, body, headers):
    answer_requests(monkeypatch, (200, headers, body))

    async def request():
        environment = Remote(url="http://nowhere")
        with pytest.raises(InfrastructureError, match="http://nowhere"):
            await environment.reset(Task("x", ""), seed=0)
        await environment.close()

    asyncio.run(request())
    with pytest.raises(TaskError, match="tasks: http://nowhere") as caught:
        RemoteTasks(url="http://nowhere")
    assert "\n" not in str(caught.value)


def test_invalid_verdict_is_an_infrastructure_error_and_closing_succeeds(monkeypatch):
    fine = b'{"messages": []}'
    answer_requests(monkeypatch, (200, {}, b'{"id": "a"}'), (200, {}, fine), (200, {}, b"[]"), (422, {}, b"no\nno"))

    async def request():
        environment = Remote(url="http://nowhere")
        await environment.reset(Task("x", ""), seed=0)
        with pytest.raises(InfrastructureError, match="the response is invalid"):
            await environment.verdict()
        await environment.close()

    asyncio.run(request())


def test_endless_answer_is_cut(monkeypatch):
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            sent += 1 << 20
            yield b" " * (1 << 20)

    answer_requests(monkeypatch, (200, {}, endless()))
    with pytest.raises(InfrastructureError, match=r"more|longer|JSON"):
        asyncio.run(ask("http://nowhere", "GET", "/health"))
    assert sent < 80 << 20


@pytest.mark.parametrize("arguments", ['{"command": "\\ud83d"}', "[" * 5000, '{"command": "' + "u" * 9000 + '"}'])
def test_malformed_calls_of_a_served_environment_are_answered(household, arguments):
    url, _ = household
    task = source_of("household").task(0)
    messages = [assistant("", ToolCall("act", arguments, "c")), assistant("", ToolCall("\ud83d", arguments, "d"))]
    done = by(lambda: Remote(url=url), task, *messages)
    assert [len(turn.observation) for turn in done.turns] == [1, 1]
