"""Servers of other projects: small imitations of their protocols, and the real packages if they are installed."""

import asyncio
import json
from pathlib import Path

import httpx2
import pytest

from support.local_servers import by, installed_python, routes, served, started
from whetstone.chat import ToolCall, assistant
from whetstone.environments.remote import verifiers
from whetstone.environments.remote.agentgym import AgentGym
from whetstone.environments.remote.http_client import JsonHttpClient, NotFoundError
from whetstone.environments.remote.nemo_gym import NemoGym, NemoGymTasks
from whetstone.environments.remote.openenv import OpenEnv
from whetstone.environments.remote.verifiers import Verifiers, VerifiersTasks
from whetstone.environments.remote.verifiers_harness import VerifiersHarness
from whetstone.errors import EpisodeError, InfrastructureError, RecipeError, TaskError
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.trajectory import Task

pytest.importorskip("websockets", reason="websockets is not installed: pip install -e '.[openenv]'")
WORLDS = Path(__file__).resolve().parents[1] / "data" / "servers"


def agentgym(state):
    """Build an AgentGym server that loses the environment on `break` and refuses `odd`."""

    def create(body):
        state["ids"] += 1
        return {"id": state["ids"] if not state.get("rotating") else 1}

    def step(body):
        if body["action"] == "break":
            state["lost"] = True
            return {"error": "KeyError: env"}
        if body["action"] == "odd":
            return state.get("refusal", {"error": "Invalid action"})
        if body["action"] == "bare":
            return "a text"
        done = body["action"] == "win"
        reward = {"nothing": None, "nan": "nan", "enough": 1.0}.get(body["action"], float(done))
        return {"observation": f"you said {body['action']}", "reward": reward, "done": done}

    def observation(body):
        return (500, {"error": "KeyError: env"}) if state.get("lost") else "you are here"

    def close(body):
        state["closed"] += 1
        return True

    return routes(
        create=create,
        reset=lambda b: {"observation": f"item {b['data_idx']}"},
        step=step,
        close=close,
        observation=observation,
    )


def test_agentgym_server_is_played_and_closed():
    state = {"ids": 0, "closed": 0}
    with served(agentgym(state)) as url:
        messages = iter([assistant("hm"), assistant("Thought: so\nwin")])
        played = asyncio.run(
            play_with_policy(
                lambda: AgentGym(url=url), Task("a", "", {"data_idx": 4}), lambda *_: next(messages), seed=0
            )
        )
        assert played.trajectory.opening[0].text == "item 4"
        assert played.trajectory.final == {"success": True, "score": 1.0}
        failing = iter([assistant("break")])
        with pytest.raises(InfrastructureError, match="KeyError: env"):
            asyncio.run(play_with_policy(lambda: AgentGym(url=url), Task("a", ""), lambda *_: next(failing), seed=0))
    assert (state["ids"], state["closed"]) == (2, 2)


@pytest.mark.parametrize("refusal", [{"error": "Invalid action"}, (422, {"detail": "no such move"}), (400, {})])
def test_action_that_an_agentgym_server_refuses_can_be_corrected(refusal):
    with served(agentgym({"ids": 0, "closed": 0, "refusal": refusal})) as url:
        make = lambda: AgentGym(url=url, actions="call")  # noqa: E731
        odd = assistant("", ToolCall("act", '{"command": "odd"}', "c"))
        win = assistant("", ToolCall("act", '{"command": "win"}', "d"))
        done = by(make, Task("a", ""), odd, odd, win)
    assert [turn.calls[0].outcome for turn in done.turns] == ["tool_error", "tool_error", "ok"]
    assert done.turns[0].observation[0].text.startswith("error:")
    assert done.final["success"] is True


def test_reached_reward_counts_after_further_actions():
    with served(agentgym({"ids": 0, "closed": 0})) as url:
        make = lambda: AgentGym(url=url)  # noqa: E731
        assert by(make, Task("a", ""), assistant("enough"), assistant("hm")).final == {"success": True, "score": 1.0}
        assert by(make, Task("a", ""), assistant("nothing")).final == {"success": False, "score": 0.0}
        for answer, why in (("nan", "not a finite number"), ("bare", "not a JSON object")):
            with pytest.raises(InfrastructureError, match=why):
                by(make, Task("a", ""), assistant(answer))


def test_duplicate_id_of_a_server_is_refused():
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


DIALECTS = {
    # by server: fields of /create, /reset, /step; answers of /create, /reset and /step; fields of /reset for item 5
    "textcraft": (
        ["commands?", "goal?"], ["id", "data_idx?"], ["id", "action"],
        {"id": 0, "observation": "", "done": False}, {"observation": "Goal: craft."}, {"observation": "ok"},
        {"id": 0, "data_idx": 5}, "Goal: craft.",
    ),
    "sciworld": (
        [], ["id", "data_idx"], ["id", "action"],
        {"id": 0}, {"observation": "A room.", "task_description": "Boil water."},
        {"observation": "ok", "reward": 3, "score": 0.5}, {"id": 0, "data_idx": 5}, "Boil water.\nA room.",
    ),
    "sqlgym": (
        [], ["env_idx", "item_id"], ["env_idx", "action"],
        0, ["Tables: a.", None], {"state": "ok", "reward": 0.0, "done": False, "info": {}},
        {"env_idx": 0, "item_id": 5}, "Tables: a.",
    ),
    "webshop": (
        [], ["env_idx", "session_id?"], ["env_idx", "action"],
        0, ["Find a chair.", None], {"state": "ok", "reward": 0.0, "done": False, "info": None},
        {"env_idx": 0, "session_id": 5}, "Find a chair.",
    ),
    "searchqa": (
        ["id"], ["env_idx", "id?"], ["env_idx", "action"],
        0, "Who?", {"observation": "ok", "reward": 0.0, "done": False, "info": None},
        {"env_idx": 0, "id": 5}, "Who?",
    ),
    "alfworld": (
        [], ["id", "game", "world_type"], ["id", "action"],
        {"id": 0}, {"observation": "A hall."}, {"observation": "ok", "reward": 0, "done": False},
        {"id": 0, "game": 5, "world_type": "Text"}, "A hall.",
    ),
    "wordle": (
        [], ["id", "seed"], ["id", "action"],
        {"id": 0}, {"observation": "Guess."}, {"observation": "ok", "reward": -1, "done": False},
        {"id": 0, "seed": 5}, "Guess.",
    ),
    "webarena": (
        None, None, None,
        {"env_idx": 0}, {"observation": "[1] link", "object": "Buy it."},
        {"observation": "ok", "reward": 0, "terminated": False, "truncated": True},
        {"id": 0, "env_idx": 0, "data_idx": 5, "idx": 9}, "Buy it.\n[1] link",
    ),
}  # fmt: skip


def build_specification(create, reset, step):
    """Build a specification as FastAPI publishes it; an optional field ends with a question mark."""

    def route(fields, name):
        about = {"properties": {f.rstrip("?"): {} for f in fields}, "required": [f for f in fields if f[-1] != "?"]}
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        return {"post": {"requestBody": {"content": content}} if fields else {}}, about

    routes = {name: route(fields, name) for name, fields in (("create", create), ("reset", reset), ("step", step))}
    paths = {f"/{name}": route for name, (route, _) in routes.items()}
    return {"paths": paths, "components": {"schemas": {name: about for name, (_, about) in routes.items()}}}


@pytest.mark.parametrize("name", DIALECTS)
def test_requests_to_each_agentgym_server_have_its_fields(name):
    create, reset, step, created, began, stepped, reset_fields, observation = DIALECTS[name]
    requests = {}

    async def ask(method, path, body=None, *, acting=False):
        requests[path] = body
        if path == "/openapi.json" and create is None:
            raise NotFoundError("404")
        answers = {"/create": created, "/reset": began, "/step": stepped, "/close": True}
        return build_specification(create, reset, step) if path == "/openapi.json" else answers[path]

    async def one():
        environment = AgentGym(url=f"http://{name}", instruction="Play.")
        environment._asking.send_request = ask
        more = {"alfworld": {"world_type": "Text"}, "webarena": {"idx": 9}}.get(name, {})
        opening = await environment.reset(Task("a", "", {"data_idx": 5, "reset": more}), seed=0)
        result, verdict = await environment.step(assistant("x")), await environment.verdict()
        await environment.close()
        return [message.text for message in opening.messages], result, verdict

    texts, result, verdict = asyncio.run(one())
    assert texts == ["Play.", observation]
    assert requests["/reset"] == reset_fields
    assert requests["/create"] == ({"id": 5} if name == "searchqa" else {})
    handle = {key: 0 for key in reset_fields if key in ("id", "env_idx") and (key, name) != ("id", "searchqa")}
    assert requests["/step"] == {**handle, "action": "x"}
    assert requests["/close"] == handle
    assert (result.observation.messages[0].text, result.truncated) == ("ok", name == "webarena")
    assert verdict["score"] == (0.5 if name == "sciworld" else 0.0)


def test_missing_fields_of_an_agentgym_task_are_named():
    async def ask(method, path, body=None, *, acting=False):
        return (
            {"id": 0} if path == "/create" else build_specification([], ["id", "game", "world_type"], ["id", "action"])
        )

    async def one():
        environment = AgentGym(url="http://alfworld")
        environment._asking.send_request = ask
        try:
            await environment.reset(Task("a", ""), seed=0)
        finally:
            await environment.close()

    with pytest.raises(
        TaskError, match=r"/reset: the server requires world_type; set the fields in the task, under `reset`"
    ):
        asyncio.run(one())


def test_restarted_agentgym_server_invalidates_the_episode_of_a_reused_id():
    async def ask(method, path, body=None, *, acting=False):
        return {"id": 0} if path == "/create" else {} if path == "/openapi.json" else {"observation": "o"}

    async def two():
        one, other = AgentGym(url="http://again"), AgentGym(url="http://again")
        one._asking.send_request = other._asking.send_request = ask
        await one.reset(Task("a", ""), seed=0)
        with pytest.raises(InfrastructureError, match="gave the id 0 to two episodes: it restarted"):
            await other.reset(Task("a", ""), seed=0)
        with pytest.raises(InfrastructureError, match="restarted and gave the environment of this episode to another"):
            await one.step(assistant("x"))
        await one.reset(Task("a", ""), seed=0)
        assert (await one.step(assistant("x"))).observation.messages[0].text == "o"
        await one.close()

    asyncio.run(two())


def test_requests_with_effects_are_not_repeated(monkeypatch):
    paths = []

    def answer(request):
        paths.append(request.url.path)
        raise httpx2.ReadTimeout("slow", request=request)

    real = httpx2.AsyncClient
    monkeypatch.setattr(
        httpx2, "AsyncClient", lambda **options: real(**options, transport=httpx2.MockTransport(answer))
    )
    environment = AgentGym(url="http://slow")
    environment._id = 1

    async def stepped():
        try:
            await environment.step(assistant("x"))
        finally:
            environment._id = None
            await environment.close()

    with pytest.raises(InfrastructureError, match="ReadTimeout: slow; then ReadTimeout: slow"):
        asyncio.run(stepped())
    assert paths == ["/step", "/observation"]  # the step is not repeated


def test_nemo_gym_server_runs_tools_and_verifies_the_transcript():
    seen = {}

    def verify(body):
        seen.update(body)
        last = body["response"]["output"][-1]["content"][0]["text"]
        return {"reward": 1.0 if last == body["expected"] else 0.0, "reward_components": {"exact": 1.0}}

    app = routes(seed_session=lambda b: {}, add=lambda b: {"sum": b["a"] + b["b"]}, verify=verify)
    tool = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}
    task = Task("n", "2+3?", {"tools": [tool], "row": {"expected": "5"}})
    messages = [
        assistant("", ToolCall("add", '{"a": 2, "b": 3}')),
        assistant("", ToolCall("sub", "{}")),
        assistant("5"),
    ]
    with served(app) as url:
        left = iter(messages)
        played = asyncio.run(play_with_policy(lambda: NemoGym(url=url), task, lambda *_: next(left), seed=0))
    assert [turn.observation[0].text for turn in played.trajectory.turns[:2]] == [
        '{"sum": 5}',
        "error: there is no tool sub; there are: add",
    ]
    assert played.trajectory.final == {"exact": 1.0, "success": True, "score": 1.0, "reward": 1.0}
    kinds = [item["type"] for item in seen["response"]["output"]]
    assert kinds == ["function_call", "function_call_output"] * 2 + ["message"]


def nemo_gym(add, reward=1.0):
    """Build a resources server with one tool, and a task for it."""
    tools = {} if add is None else {"add": add}
    app = routes(seed_session=lambda b: {}, verify=lambda b: {"reward": reward}, **tools)
    tool = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}
    return app, Task("n", "2+3?", {"tools": [tool]})


@pytest.mark.parametrize("refusal", [(422, {"detail": [{"msg": "field required"}]}), (404, {"detail": "no such user"}),
                                     (400, {}), {"error": "a must be a number"}])  # fmt: skip
def test_refused_call_of_a_nemo_gym_tool_can_be_corrected(refusal):
    app, task = nemo_gym(lambda body: refusal)
    with served(app) as url:
        done = by(lambda: NemoGym(url=url), task, assistant("", ToolCall("add", "{}")), assistant("5"))
    refused = isinstance(refusal, tuple) and refusal[0] == 422
    assert done.turns[0].calls[0].outcome == ("invalid_arguments" if refused else "tool_error")
    assert done.final["success"] is True


@pytest.mark.parametrize("arguments", ["[]", '"x"', "null", "NaN", '{"a": NaN}', "[" * 5000, "", "{"])
def test_arguments_that_are_not_an_object_never_reach_a_nemo_gym_tool(arguments):
    reached = []
    app, task = nemo_gym(lambda body: reached.append(body) or {})
    messages = [assistant("", ToolCall("add", arguments)), assistant("", ToolCall("add\ud83d", "{}"))]
    with served(app) as url:
        done = by(lambda: NemoGym(url=url), task, *messages, assistant("\ud83d"))
    assert [turn.calls[0].outcome for turn in done.turns[:2]] == ["invalid_arguments", "unknown_tool"]
    assert reached == []


def test_failing_nemo_gym_server_is_infrastructure_and_scores_are_clipped():
    app, task = nemo_gym(None)
    with served(app) as url, pytest.raises(InfrastructureError, match="no such route"):
        by(lambda: NemoGym(url=url), task, assistant("", ToolCall("add", "{}")))
    app, task = nemo_gym(lambda b: (500, {"error": "disk"}))
    with served(app) as url:  # the agent can correct the argument that caused the error
        done = by(lambda: NemoGym(url=url), task, assistant("", ToolCall("add", "{}")), assistant("5"))
    assert done.turns[0].calls[0].outcome == "tool_error"
    app, task = nemo_gym(lambda b: {}, reward=7.5)
    with served(app) as url:
        done = by(lambda: NemoGym(url=url), task, assistant("5"))
    assert (done.final["score"], done.final["reward"]) == (1.0, 7.5)
    app, task = nemo_gym(lambda b: {}, reward=None)
    with served(app) as url, pytest.raises(InfrastructureError, match="has no reward"):
        by(lambda: NemoGym(url=url), task, assistant("5"))


ROW = {
    "responses_create_params": {
        "input": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "1+2?"}],
        "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}],
        "temperature": 0.5,
    },
    "expected": 3,
}


def test_published_nemo_gym_row_is_a_task_and_verify_receives_every_field(tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(ROW)}\n{json.dumps({**ROW, 'id': 'b'})}\n")
    (task, _) = NemoGymTasks(path=str(tmp_path / "rows.jsonl"), held_out_fraction=1.0).held_out(2)
    assert (task.id, task.prompt) == ("1", "1+2?")
    bodies = {}

    async def ask(method, path, body=None, *, acting=False):
        bodies[path] = body
        return {"reward": 1.0}

    monkeypatch.setattr(JsonHttpClient, "send_request", lambda self, *args, **more: ask(*args, **more))

    async def one():
        environment = NemoGym(url="http://nowhere")
        opening = await environment.reset(task, seed=0)
        await environment.step(assistant("3"))
        return opening, await environment.verdict()

    opening, verdict = asyncio.run(one())
    assert [(m.role, m.text) for m in opening.messages] == [("system", "Be brief."), ("user", "1+2?")]
    assert [spec.name for spec in opening.tools] == ["add"]
    assert bodies["/seed_session"] == ROW
    assert bodies["/verify"]["expected"] == 3
    params = bodies["/verify"]["responses_create_params"]
    assert (params["input"], params["temperature"]) == (ROW["responses_create_params"]["input"], 0.5)
    declared = {"type": "function", "name": "add", "description": "", "parameters": {"type": "object"}, "strict": True}
    assert params["tools"] == bodies["/verify"]["response"]["tools"] == [declared]
    assert verdict["success"] is True


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "'responses_create_params' is missing"),
        (
            {"responses_create_params": {"input": [{"type": "function_call"}]}},
            "expected `input` to be a list of messages",
        ),
        ({"responses_create_params": {"input": "x", "tools": [{"type": "function"}]}}, "'name' is missing"),
        ({"responses_create_params": {"input": 5}}, "not have the format of NeMo Gym"),
    ],
)
def test_invalid_nemo_gym_row_is_refused_with_its_line(tmp_path, row, message):
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n")
    with pytest.raises(TaskError, match=rf"rows.jsonl:1 .*{message}"):
        NemoGymTasks(path=str(tmp_path / "rows.jsonl"))


@pytest.mark.slow
def test_unreadable_transcript_is_a_failure_of_the_model_only_after_its_mistake():
    def verify(body):
        calls = [item for item in body["response"]["output"] if item["type"] == "function_call"]
        return (500, {"detail": "bad"}) if calls[0]["arguments"] in ("{", '{"b": 1}') else {"reward": 1.0}

    tool = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}
    task = Task("n", "2+3?", {"tools": [tool]})
    app = routes(seed_session=lambda b: {}, add=lambda b: {"sum": 5}, verify=verify)
    with served(app) as url:
        make = lambda: NemoGym(url=url)  # noqa: E731
        done = by(make, task, assistant("", ToolCall("add", "{", "c")), assistant("5"))
        assert done.final == {"success": False, "score": 0.0, "reward": 0.0, "unverified": 1.0}
        assert done.turns[0].calls[0].outcome == "invalid_arguments"
        assert by(make, task, assistant("", ToolCall("add", "{}", "c")), assistant("5")).final["success"] is True
        with pytest.raises(InfrastructureError, match="500 bad"):
            by(make, task, assistant("", ToolCall("add", '{"b": 1}', "c")), assistant("5"))


def openenv_app(action=None, tools=(), full=0):
    """Build an OpenEnv server: a socket, an optional schema, optional tools, and free sessions or none."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route, WebSocketRoute

    busy = [full]

    def error(code, message, **more):
        return {"type": "error", "data": {"message": message, "code": code, **more}}

    def observed(observation, reward=None, done=False):
        return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}

    def stepped(data, count):
        text = data.get("message")
        if data.get("type") == "call_tool":
            result = {"content": [{"type": "text", "text": f"{data['arguments']}"}], "is_error": False}
            failed = {"error_type": "invalid_args", "message": "a is missing"}
            right = "a" in data["arguments"]
            return observed({"result": result if right else None, "error": None if right else failed}, float(right))
        if "odd" in data:
            wrong = [{"loc": ["odd"], "msg": "Extra inputs are not permitted", "input": {}}]
            return error("VALIDATION_ERROR", "Invalid message", errors=wrong)
        if text == "late":
            return None
        if text in ("raise", "unwritable"):
            return error("EXECUTION_ERROR" if text == "raise" else "SESSION_ERROR", "99 is not a valid Action")
        if text == "shape":
            return {"type": "observation", "data": ["x"]}
        if text == "perhaps":
            return observed("x", done="perhaps")
        return observed({"echo": data}, float(count == 2), count == 2)

    async def talk(socket):
        await socket.accept()
        count = 0
        while True:
            message = await socket.receive_json()
            kind, data = message["type"], message.get("data", {})
            if kind == "close" or data.get("message") == "restart":
                await socket.close()
                return
            if kind == "reset" and busy[0]:
                busy[0] -= 1
                await socket.send_json(error("CAPACITY_REACHED", "1 of 1 sessions"))
                await socket.close()
                return
            if kind == "reset":
                count, answer = 0, observed({"echo": f"ready {data['seed']}"} if action is None else {})
            elif kind == "mcp":
                answer = {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "result": {"tools": list(tools)}}}
            elif kind == "state":
                answer = {"type": "state", "data": {}} if "data" not in message else error("VALIDATION_ERROR", "no")
            else:
                answer = stepped(data, count + 1)
                count += answer is not None and answer["type"] == "observation"
            if answer is not None:
                await socket.send_json(answer)
            if (
                answer is not None
                and answer["data"].__class__ is dict
                and answer["data"].get("code") == "SESSION_ERROR"
            ):
                await socket.close()
                return

    sockets = [WebSocketRoute("/ws", talk)]
    schema = Route("/schema", lambda _: JSONResponse({"action": action}))
    return Starlette(routes=sockets if action is None else [*sockets, schema])


def an_action(**fields):
    return {"properties": {"metadata": {"type": "object"}, **fields}, "required": list(fields)}


def test_openenv_session_belongs_to_its_socket():
    with served(openenv_app()) as url:
        messages = iter([assistant("hello"), assistant('{"code": "1+1"}')])
        played = asyncio.run(
            play_with_policy(
                lambda: OpenEnv(url=url, observation_field="echo"), Task("o", "Go."), lambda *_: next(messages), seed=5
            )
        )
        assert played.trajectory.opening[0].text == "Go.\nready 5"
        assert [t.observation[0].text for t in played.trajectory.turns] == ["{'message': 'hello'}", "{'code': '1+1'}"]
        assert played.trajectory.final == {"success": True, "score": 1.0}


@pytest.mark.slow
def test_refused_action_of_an_openenv_server_is_answered_and_the_episode_continues():
    with served(openenv_app()) as url:
        done = by(lambda: OpenEnv(url=url), Task("o", ""), *map(assistant, ('{"odd": 1}', "raise", "a", "b")))
        texts = [turn.observation[0].text for turn in done.turns]
        assert texts[:2] == ["error: odd: Extra inputs are not permitted", "error: 99 is not a valid Action"]
        assert (done.final["success"], len(done.turns)) == (True, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "answer"), [("unwritable", "99 is not a valid Action"), ("late", "no answer to `step`")]
)
def test_action_that_ends_an_openenv_session_ends_the_episode_and_counts(action, answer):
    with served(openenv_app()) as url:
        make = lambda: OpenEnv(url=url, seconds=0.3)  # noqa: E731
        done = by(make, Task("o", ""), assistant(action), assistant("never"))
    assert (done.ended, len(done.turns), done.final["success"]) == ("terminated", 1, False)
    assert answer in done.turns[0].observation[0].text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "why"),
    [("restart", "connection"), ("shape", "the response to `step` is invalid"), ("perhaps", "not a boolean")],
)
def test_restarted_or_invalid_openenv_server_is_an_infrastructure_error(action, why):
    with served(openenv_app()) as url, pytest.raises(InfrastructureError, match=why) as caught:
        by(lambda: OpenEnv(url=url), Task("o", ""), assistant(action))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_unreachable_openenv_server_is_an_infrastructure_error():
    with pytest.raises(InfrastructureError, match=r"127.0.0.1:9.*failed after 3 attempts"):
        by(lambda: OpenEnv(url="http://127.0.0.1:9"), Task("o", ""), assistant("x"))


@pytest.mark.slow
def test_full_openenv_server_is_retried():
    with served(openenv_app(full=2)) as url:
        assert by(lambda: OpenEnv(url=url), Task("o", ""), assistant("a"), assistant("b")).final["success"] is True
    with served(openenv_app(full=9)) as url, pytest.raises(InfrastructureError, match=r"full for 0.1 s: 1 of 1"):
        by(lambda: OpenEnv(url=url, seconds=0.1), Task("o", ""), assistant("a"))


@pytest.mark.slow
def test_commands_use_the_field_of_the_openenv_schema_and_keep_all_lines():
    code = "def f(x):\n    return x\n\nprint(f(1))"
    with served(openenv_app(an_action(code={"type": "string"}))) as url:
        done = by(
            lambda: OpenEnv(url=url, observation_field="echo"), Task("o", "Go."), assistant(code), assistant(code)
        )
        assert done.opening[0].text == "Go."
        assert done.turns[0].observation[0].text == str({"code": code})
        last = by(
            lambda: OpenEnv(url=url, observation_field="echo", full_text=False), Task("o", ""), assistant("so\nup")
        )
        assert last.turns[0].observation[0].text == str({"code": "up"})
    with served(openenv_app(an_action(x={}, y={}))) as url:
        done = by(
            lambda: OpenEnv(url=url, observation_field="echo"),
            Task("o", ""),
            assistant("up"),
            assistant('{"x": 1, "y": 2}'),
        )
        texts = [turn.observation[0].text for turn in done.turns]
    assert texts == ["Give the action as a JSON object with x, y.", "{'x': 1, 'y': 2}"]


@pytest.mark.slow
def test_tools_of_an_openenv_server_are_offered():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tools = [{"name": "add", "description": "Add.", "input_schema": schema}]
    action = an_action(type={"const": "call_tool"}, tool_name={}, arguments={})
    calls = [ToolCall("add", '{"a": 1}', "c"), ToolCall("add", "{}", "d"), ToolCall("ad", "{}", "e")]
    with served(openenv_app(action, tools)) as url:
        make = lambda: OpenEnv(url=url)  # noqa: E731
        messages = [assistant("", *calls), assistant("", ToolCall("add", "[]", "f")), assistant("1")]
        done = by(make, Task("o", "Add."), *messages)

        async def offered():
            environment = make()
            try:
                return (await environment.reset(Task("o", "Add."), seed=0)).tools
            finally:
                await environment.close()

        assert [(spec.name, spec.parameters) for spec in asyncio.run(offered())] == [("add", schema)]
    outcomes = [call.outcome for turn in done.turns for call in turn.calls]
    assert outcomes == ["ok", "invalid_arguments", "unknown_tool", "invalid_arguments"]
    texts = [message.text for turn in done.turns for message in turn.observation]
    assert texts[0] == "{'a': 1}"
    assert (texts[1], texts[2]) == ("error: a is missing", 'error: there is no tool "ad"; did you mean "add"?')
    assert (done.ended, done.turns[0].reward, done.final["success"]) == ("terminated", 1.0, True)


# ------------------------------------------------------------ verifiers

BRIDGE = """
import json, os, sys
asked = json.loads(sys.argv[1])
if asked["taskset"] == "broken":
    print(json.dumps({"error": "ModuleNotFoundError: No module named 'verifiers'"})); raise SystemExit
print(json.dumps({"tasks": [{"id": str(i), "key": f"k{i}", "prompt": f"{i}?"} for i in range(4)]}), flush=True)
for line in () if asked["tasks"] else sys.stdin:
    said = json.loads(line)
    answer = {
        "begin": {
            "messages": [{"role": "user", "content": "1?"}],
            "tools": [{"name": "f", "description": "", "parameters": {}}],
        },
        "call": {"text": "x", "failed": said.get("arguments") == {}},
        "score": {"reward": 0.5, "parts": {"right": 0.5, "said": len(said.get("messages", []))}},
    }.get(said["do"])
    if said["do"] == "call" and said["arguments"] == {"a": 1}:
        os._exit(3)
    if said["do"] == "score" and asked["taskset"] == "raises":
        print(json.dumps({"number": said["number"], "error": "ValueError: odd\\nlines"}), flush=True)
    else:
        print(json.dumps({"number": said["number"], "said": answer}), flush=True)
"""


@pytest.fixture
def bridge(tmp_path, monkeypatch):
    (tmp_path / "bridge.py").write_text(BRIDGE)
    monkeypatch.setattr(verifiers, "_BRIDGE", tmp_path / "bridge.py")


@pytest.mark.slow
def test_verifiers_taskset_is_played_and_errors_of_its_process_are_reported(bridge):
    task = VerifiersTasks(taskset="fine", held_out_fraction=1.0).held_out(4)[1]
    assert (task.prompt, task.private) == ("1?", {"index": 1, "key": "k1"})
    calls = [
        ToolCall("f", '{"b": 1}', "c"),
        ToolCall("f", "{}", "d"),
        ToolCall("g", "{}", "e"),
        ToolCall("f", "[", "h"),
    ]
    done = by(lambda: Verifiers(taskset="fine"), task, assistant("", *calls), assistant("2"))
    assert [call.outcome for call in done.turns[0].calls] == ["ok", "tool_error", "unknown_tool", "invalid_arguments"]
    assert done.final == {"right": 0.5, "said": 7.0, "success": False, "score": 0.5, "reward": 0.5}
    with pytest.raises(InfrastructureError, match="the process ended in `call`"):
        by(lambda: Verifiers(taskset="fine"), task, assistant("", ToolCall("f", '{"a": 1}', "c")))
    with pytest.raises(InfrastructureError, match=r"^verifiers: score: ValueError: odd lines$"):
        by(lambda: Verifiers(taskset="raises"), task, assistant("2"))
    with pytest.raises(TaskError, match="pip install verifiers brings the package"):
        VerifiersTasks(taskset="broken")


HARNESS = """
import json, sys, urllib.request
asked = json.loads(sys.argv[1])
print(json.dumps({"tasks": 1}), flush=True)
for line in sys.stdin:
    said = json.loads(line)
    if said["do"] == "play" and said["key"] == "fails":
        answer = {"failed": "HarnessError: no more"}
    elif said["do"] == "play":
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "3+4?"}]}).encode()
        url, head = said["base_url"] + "/chat/completions", {"Content-Type": "application/json"}
        told = json.load(urllib.request.urlopen(urllib.request.Request(url, body, head)))
        right = told["choices"][0]["message"]["content"] == "7"
        answer = {"reward": float(right), "parts": {"right": float(right)}}
    else:
        answer = None
    print(json.dumps({"number": said["number"], "said": answer}), flush=True)
"""


def test_harness_of_verifiers_requests_the_policy_and_its_failure_is_reported(tmp_path, monkeypatch):
    (tmp_path / "bridge.py").write_text(HARNESS)
    monkeypatch.setattr(verifiers, "_BRIDGE", tmp_path / "bridge.py")
    make = lambda: VerifiersHarness(taskset="fine")  # noqa: E731
    done = by(make, Task("t", "", {"index": 0, "key": "k"}), assistant("7"))
    assert [message.text for message in done.opening] == ["3+4?"]
    assert (done.ended, done.final) == ("terminated", {"right": 1.0, "success": True, "score": 1.0, "reward": 1.0})
    with pytest.raises(EpisodeError, match="ended without a request to its model: HarnessError: no more"):
        by(make, Task("t", "", {"index": 0, "key": "fails"}), assistant("7"))
    with pytest.raises(TaskError, match="not a task of a verifiers taskset"):
        by(make, Task("t", ""), assistant("7"))


def test_missing_interpreter_is_reported_with_the_command_to_create_one():
    with pytest.raises(RecipeError, match="no interpreter nowhere/python; run `python -m venv verifiers"):
        Verifiers(taskset="x", python="nowhere/python")


# ------------------------------------------------------------ the packages themselves


@pytest.mark.slow
def test_package_verifiers_provides_tasks_stateful_tools_and_rewards(monkeypatch):
    python = installed_python("verifiers", "verifiers")
    monkeypatch.setenv("PYTHONPATH", str(WORLDS))
    tasks = VerifiersTasks(taskset="whetstone_sums", python=python, held_out_fraction=1.0).held_out(20)
    add, count = ToolCall("adder_add", '{"a": 3, "b": 4}', "c"), ToolCall("adder_calls", "{}", "d")
    make = lambda: Verifiers(taskset="whetstone_sums", python=python)  # noqa: E731
    done = by(make, tasks[3], assistant("", add), assistant("", count), assistant("7"))
    assert [message.text for message in done.opening] == ["Add.", "3+4?"]
    assert [turn.observation[0].text for turn in done.turns[:2]] == ["7", "1"]
    assert done.final["success"] is True
    assert (done.final["right"], done.final["brief"], done.final["added"]) == (1.0, pytest.approx(1 / 3), 1.0)


@pytest.mark.slow
def test_package_openenv_is_played_over_its_server():
    python = installed_python("openenv", "openenv-core")
    call = lambda name, arguments: assistant("", ToolCall(name, json.dumps(arguments), "c"))  # noqa: E731
    with started(python, "openenv_world:tools") as url:
        task = Task("o", "3+4?", {"reset": {"a": 3, "b": 4}})
        messages = [call("add", {"a": "x", "b": 4}), call("add", {"a": 3, "b": 4}), call("submit", {"answer": 7})]
        done = by(lambda: OpenEnv(url=url), task, *messages)
    assert [turn.calls[0].outcome for turn in done.turns] == ["tool_error", "ok", "ok"]
    assert (done.turns[1].observation[0].text, done.final["success"], done.ended) == ("7", True, "terminated")
    with started(python, "openenv_world:code") as url:
        messages = [assistant("x = 1\n" * 200), assistant('{"cod": 1}'), assistant("x = 1\ny = 2")]
        done = by(lambda: OpenEnv(url=url), Task("o", "", {"reset": {"lines": 2}}), *messages)
    texts = [turn.observation[0].text for turn in done.turns]
    assert texts[0] == "error: that is too long"
    assert texts[1].startswith("error: code: Field required")
    assert (len(done.turns), done.final["success"]) == (3, True)
