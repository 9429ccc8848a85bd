"""Environments behind an address: ours, served for real; and the servers others have, spoken to as they speak."""

import asyncio
import contextlib
import functools
import json
import socket
import threading
import time

import pytest

from tests_worlds import contract, environment_of, source_of
from whetstone.chat import ToolCall, assistant
from whetstone.environments.remote.agentgym import AgentGym
from whetstone.environments.remote.asking import Asking
from whetstone.environments.remote.client import Remote, RemoteTasks
from whetstone.environments.remote.nemo_gym import NemoGym
from whetstone.environments.remote.openenv import OpenEnv
from whetstone.environments.remote.server import Episodes, application
from whetstone.errors import EpisodeError, InfrastructureError, TaskError
from whetstone.evaluation.contract import RandomPolicy, play
from whetstone.trajectory import Task

uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install -e '.[serve]'")


@contextlib.contextmanager
def served(app):
    """A server of an application, in a thread, while inside."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def household():
    """(address, open episodes) of a served household."""
    episodes = Episodes(functools.partial(environment_of, "household"), capacity=80)
    with served(application("household", episodes, source_of("household"))) as url:
        yield url, episodes


# ------------------------------------------------------------ ours


def test_a_served_environment_plays_as_one_at_hand(household):
    url, episodes = household
    tasks = RemoteTasks(url=url)
    here = source_of("household")
    for index in range(3):
        task = tasks.task(index)
        assert task == here.task(index)
        near = asyncio.run(play(functools.partial(environment_of, "household"), task, RandomPolicy(1).action, seed=3))
        # the policy far away is not told which commands there are, so it is given the same actions
        left = iter(near.actions)
        far = asyncio.run(play(lambda: Remote(url=url), task, lambda *_, left=left: next(left), seed=3))
        assert far.transcript == near.transcript
    assert tasks.held_out(5) == here.held_out(5)
    assert episodes.open == {}


def test_many_at_once_do_not_meet(household):
    url, episodes = household
    source = source_of("household")

    async def all_of_them():
        return await asyncio.gather(*(one(seed) for seed in range(40)))

    async def one(seed):
        task = source.task(seed)
        near = await play(
            functools.partial(environment_of, "household"), task, RandomPolicy(seed).action, seed=seed, max_turns=6
        )
        left = iter(near.actions)
        far = await play(lambda: Remote(url=url), task, lambda *_: next(left), seed=seed, max_turns=6)
        return far.transcript == near.transcript

    assert all(asyncio.run(all_of_them()))
    assert episodes.open == {}


async def ask(url, method, path, body=None):
    asking = Asking(url, tries=1)
    try:
        return await asking.ask(method, path, body)
    finally:
        await asking.close()


def test_an_action_that_is_sent_twice_is_carried_out_once(household):
    url, _ = household

    async def twice():
        id = (await ask(url, "POST", "/episodes", {"protocol": 1}))["id"]
        task = source_of("household").task(0)
        body = {"task": {"id": task.id, "private": dict(task.private)}, "seed": 0}
        await ask(url, "POST", f"/episodes/{id}/reset", body)
        action = assistant("", ToolCall("act", '{"command": "look"}', "c")).to_openai()
        answers = [await ask(url, "POST", f"/episodes/{id}/step", {"turn": 0, "action": action}) for _ in range(3)]
        steps = (await ask(url, "POST", f"/episodes/{id}/verdict", {}))["steps"]
        with pytest.raises(EpisodeError, match="turn 7 does not come behind turn 0"):
            await ask(url, "POST", f"/episodes/{id}/step", {"turn": 7, "action": action})
        await ask(url, "DELETE", f"/episodes/{id}")
        with pytest.raises(EpisodeError, match="no open episode"):
            await ask(url, "POST", f"/episodes/{id}/step", {"turn": 1, "action": action})
        return answers, steps

    answers, steps = asyncio.run(twice())
    assert answers[0] == answers[1] == answers[2]
    assert steps == 1


def test_another_protocol_and_a_bad_task_are_refused_by_name(household):
    url, _ = household
    with pytest.raises(TaskError, match="speaks protocol 1, the client 9"):
        asyncio.run(ask(url, "POST", "/episodes", {"protocol": 9}))

    async def bad_task():
        environment = Remote(url=url)
        try:
            await environment.reset(Task("x", ""), seed=0)
        finally:
            await environment.close()

    with pytest.raises(TaskError):
        asyncio.run(bad_task())


def test_a_full_server_says_so_and_forgotten_episodes_are_closed():
    episodes = Episodes(functools.partial(environment_of, "household"), capacity=2, idle_seconds=0.2)
    with served(application("household", episodes)) as url:

        async def filled():
            for _ in range(2):
                await ask(url, "POST", "/episodes", {"protocol": 1})
            with pytest.raises(InfrastructureError, match=r"503.*2 episodes are open"):
                await ask(url, "POST", "/episodes", {"protocol": 1})
            await asyncio.sleep(0.6)
            await ask(url, "POST", "/episodes", {"protocol": 1})

        asyncio.run(filled())
        assert episodes.reaped == 2
        with pytest.raises(TaskError, match="no tasks"):
            RemoteTasks(url=url)


def test_a_server_that_is_gone_makes_the_episode_invalid_and_closing_is_quiet():
    async def gone():
        environment = Remote(url="http://127.0.0.1:9")
        with pytest.raises(InfrastructureError, match="asked 3 times"):
            await environment.reset(Task("x", ""), seed=0)
        await environment.close()

    asyncio.run(gone())
    assert contract("sokoban").make().specs  # and nothing else is the worse for it


# ------------------------------------------------------------ others'


def routes(**handlers):
    """A server of JSON routes: name → function of the body."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    def route(name, handler):
        async def answer(request):
            body = json.loads(await request.body() or b"{}")
            said = handler(body)
            status, value = said if isinstance(said, tuple) else (200, said)
            return JSONResponse(value, status_code=status)

        return Route(f"/{name}", answer, methods=["POST"])

    return Starlette(routes=[route(name, handler) for name, handler in handlers.items()])


def agentgym(state):
    def create(body):
        state["ids"] += 1
        return {"id": state["ids"] if not state.get("rotating") else 1}

    def step(body):
        if body["action"] == "break":
            return {"error": "KeyError: env"}
        done = body["action"] == "win"
        return {"observation": f"you said {body['action']}", "reward": float(done), "done": done}

    def close(body):
        state["closed"] += 1
        return True

    return routes(create=create, reset=lambda b: {"observation": f"item {b['data_idx']}"}, step=step, close=close)


def test_an_agentgym_server_is_played_and_closed():
    state = {"ids": 0, "closed": 0}
    with served(agentgym(state)) as url:
        said = iter([assistant("hm"), assistant("Thought: so\nwin")])
        played = asyncio.run(
            play(lambda: AgentGym(url=url), Task("a", "", {"data_idx": 4}), lambda *_: next(said), seed=0)
        )
        assert played.trajectory.opening[0].text == "item 4"
        assert played.trajectory.final == {"success": True, "score": 1.0}
        failing = iter([assistant("break")])
        with pytest.raises(InfrastructureError, match="KeyError: env"):
            asyncio.run(play(lambda: AgentGym(url=url), Task("a", ""), lambda *_: next(failing), seed=0))
    assert state == {"ids": 2, "closed": 2}


def test_an_id_that_is_in_use_is_refused():
    state = {"ids": 0, "closed": 0, "rotating": True}
    with served(agentgym(state)) as url:

        async def two():
            one, other = AgentGym(url=url), AgentGym(url=url)
            await one.reset(Task("a", ""), seed=0)
            with pytest.raises(InfrastructureError, match="gave the id 1 to two episodes"):
                await other.reset(Task("a", ""), seed=0)
            await other.close()
            await one.close()
            await other.reset(Task("a", ""), seed=0)
            await other.close()

        asyncio.run(two())


def test_a_nemo_gym_server_runs_the_tools_and_verifies_what_was_said():
    seen = {}

    def verify(body):
        seen.update(body)
        last = body["response"]["output"][-1]["content"][0]["text"]
        return {"reward": 1.0 if last == body["expected"] else 0.0, "reward_components": {"exact": 1.0}}

    app = routes(seed_session=lambda b: {}, add=lambda b: {"sum": b["a"] + b["b"]}, verify=verify)
    tool = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}
    task = Task("n", "2+3?", {"tools": [tool], "row": {"expected": "5"}})
    said = [assistant("", ToolCall("add", '{"a": 2, "b": 3}')), assistant("", ToolCall("sub", "{}")), assistant("5")]
    with served(app) as url:
        left = iter(said)
        played = asyncio.run(play(lambda: NemoGym(url=url), task, lambda *_: next(left), seed=0))
    assert [turn.observation[0].text for turn in played.trajectory.turns[:2]] == [
        '{"sum": 5}',
        "error: there is no tool sub",
    ]
    assert played.trajectory.final == {"exact": 1.0, "success": True, "score": 1.0}
    kinds = [item["type"] for item in seen["response"]["output"]]
    assert kinds == ["function_call", "function_call_output"] * 2 + ["message"]


def openenv_app():
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute

    async def talk(socket):
        await socket.accept()
        count = 0
        while True:
            message = await socket.receive_json()
            if message["type"] == "close":
                await socket.close()
                return
            if message["type"] == "reset":
                count = 0
                data = {"observation": {"echo": f"ready {message['data']['seed']}"}, "reward": None, "done": False}
            elif message["data"].get("message") == "break":
                await socket.send_json({"type": "error", "data": {"message": "it broke", "code": "EXECUTION_ERROR"}})
                continue
            else:
                count += 1
                data = {"observation": {"echo": message["data"]}, "reward": float(count == 2), "done": count == 2}
            await socket.send_json({"type": "observation", "data": data})

    return Starlette(routes=[WebSocketRoute("/ws", talk)])


def test_an_openenv_server_keeps_its_session_on_the_socket():
    pytest.importorskip("websockets", reason="websockets is not installed: pip install -e '.[openenv]'")
    with served(openenv_app()) as url:
        said = iter([assistant("hello"), assistant('{"code": "1+1"}')])
        played = asyncio.run(
            play(lambda: OpenEnv(url=url, shown="echo"), Task("o", "Go."), lambda *_: next(said), seed=5)
        )
        assert played.trajectory.opening[0].text == "Go.\nready 5"
        assert [t.observation[0].text for t in played.trajectory.turns] == ["{'message': 'hello'}", "{'code': '1+1'}"]
        assert played.trajectory.final == {"success": True, "score": 1.0}
        failing = iter([assistant("break")])
        with pytest.raises(InfrastructureError, match="EXECUTION_ERROR: it broke"):
            asyncio.run(play(lambda: OpenEnv(url=url), Task("o", ""), lambda *_: next(failing), seed=0))
    with pytest.raises(InfrastructureError):
        asyncio.run(OpenEnv(url="http://127.0.0.1:9").reset(Task("o", ""), seed=0))
