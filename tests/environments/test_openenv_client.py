"""Client of OpenEnv: sessions of a server that has one at a time, and the field of an action that gets the command."""

import asyncio

import pytest

from support.local_servers import by, served
from whetstone.chat import assistant
from whetstone.environments.remote.openenv import OpenEnv
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.trajectory import Task

pytest.importorskip("websockets", reason="websockets is not installed: pip install -e '.[openenv]'")
TEXT, NULL = {"type": "string"}, {"type": "null"}


def build_server(sessions, fields=None, required=()):
    """Build an OpenEnv server with one session at a time: a full one reports it before it reads, as the package does.

    Args:
        sessions: Receives the number of open sessions under `open`, and of refused ones under `refused`.
        fields: Fields of an action in the schema; None: there is no schema.
        required: Names of the required fields.
    """
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route, WebSocketRoute

    async def talk(socket):
        await socket.accept()
        if sessions["open"]:
            sessions["refused"] += 1
            full = {"message": "1 of 1 sessions", "code": "CAPACITY_REACHED"}
            await socket.send_json({"type": "error", "data": full})
            await socket.close()
            return
        sessions["open"] += 1
        while (message := await socket.receive_json())["type"] != "close":
            done = message["type"] == "step"
            data = {"observation": f"{message['data']}", "reward": float(done), "done": done}
            await socket.send_json({"type": "observation", "data": data})
        await asyncio.sleep(0.1)  # the environment of the session is closed
        sessions["open"] -= 1
        await socket.close()

    action = {"properties": {"metadata": {"type": "object"}, **(fields or {})}, "required": list(required)}
    schema = Route("/schema", lambda _: JSONResponse({"action": action}))
    return Starlette(routes=[WebSocketRoute("/ws", talk), *([] if fields is None else [schema])])


def test_concurrent_episodes_wait_for_the_session_of_a_full_server():
    sessions = {"open": 0, "refused": 0}

    async def play_all(url):
        make = lambda: OpenEnv(url=url)  # noqa: E731
        episodes = [
            play_with_policy(make, Task(str(n), ""), lambda *_: assistant("go"), seed=n, max_turns=1) for n in range(4)
        ]
        return await asyncio.gather(*episodes)

    with served(build_server(sessions)) as url:
        played = asyncio.run(play_all(url))
    assert [one.trajectory.final["success"] for one in played] == [True] * 4
    assert sessions["refused"] >= 3
    assert sessions["open"] == 0


def test_session_is_released_when_close_returns():
    sessions = {"open": 0, "refused": 0}

    async def play_twice(url):
        environment = OpenEnv(url=url)
        for _ in range(2):
            await environment.reset(Task("a", ""), seed=0)
            assert sessions["open"] == 1
            await environment.close()
            assert sessions["open"] == 0

    with served(build_server(sessions)) as url:
        asyncio.run(play_twice(url))
    assert sessions["refused"] == 0


@pytest.mark.parametrize(
    ("fields", "required", "command", "action"),
    [
        ({"is_final": {"type": "boolean"}, "code": TEXT, "answer": TEXT}, (), "f(1)", {"code": "f(1)"}),
        ({"answer": {"anyOf": [NULL, TEXT]}, "x": {"type": "integer"}}, (), "3", {"answer": "3"}),
        ({"x": {"type": "integer"}, "message": TEXT}, (), "3", {"message": "3"}),
        ({"values": {"type": "array"}, "x": {"type": "number"}}, (), "[0.5, 1]", {"values": [0.5, 1]}),
        ({"name": TEXT, "column": {"type": "integer"}}, ("column",), "3", {"column": 3}),
        ({"column": {"type": ["integer", "null"]}}, ("column",), "left", {"column": "left"}),
        ({"move": {"$ref": "#/$defs/Move"}}, ("move",), "3", {"move": "3"}),
    ],
)
def test_command_is_sent_in_the_field_and_type_of_the_schema(fields, required, command, action):
    with served(build_server({"open": 0, "refused": 0}, fields, required)) as url:
        done = by(lambda: OpenEnv(url=url), Task("a", "Go."), assistant(command))
    assert done.turns[0].observation[0].text == str(action)


def test_deeply_nested_action_is_refused_and_the_episode_continues():
    nested = '{"code": ' + "[" * 700 + "]" * 700 + "}"
    with served(build_server({"open": 0, "refused": 0})) as url:
        done = by(lambda: OpenEnv(url=url), Task("a", ""), assistant(nested), assistant("go"))
    assert done.turns[0].observation[0].text == "error: the JSON of `step` is nested too deeply"
    assert (len(done.turns), done.final["success"]) == (2, True)
