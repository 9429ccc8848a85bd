"""Simulated users: scripts, and models on servers that are slow, busy, down or return invalid answers."""

import asyncio
import functools
import http.server
import json
import threading

import pytest

from support.episodes import CHAT, LIMITS, Says, in_order
from whetstone.chat import assistant
from whetstone.environments import ToolEnvironment
from whetstone.environments.user_simulators import EndpointUser, Requests, ScenarioUser
from whetstone.environments.user_simulators.user_tools import USER_TOOLS, UserTools
from whetstone.errors import InfrastructureError
from whetstone.plugins import OptionError
from whetstone.rollout import run_episode
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Author, EndReason, Task

pytestmark = pytest.mark.usefixtures("impatient")

SCENARIO = {"reason_for_call": "I want my money back.", "known_info": "I am Ann Lee.", "task_instructions": "Be brief."}
TASK = Task("u", "", {"scenario": SCENARIO, "requests": ["First this.", "Then that."]})


def talk(user, *messages):
    environment = ToolEnvironment(user=user)
    actor = Says(in_order(*map(assistant, messages)))
    return asyncio.run(
        run_episode(TASK, environment=environment, actor=actor, chat=CHAT, limits=LIMITS, id="e", seed=1)
    )


def test_text_without_a_call_is_sent_to_the_user_and_its_answer_is_not_trained():
    episode = talk(Requests, "done", "done", "done")
    assert [message.text for message in episode.messages if message.role == "user"] == [
        "First this.",
        "Then that.",
        "Thank you, that was all.",
    ]
    assert episode.ended is EndReason.TERMINATED
    for turn in episode.turns:
        assert set(turn.context.authors) == {Author.OTHER_AGENT}
        assert set(turn.action.authors) == {Author.POLICY}
    (segment,) = episode.segments()
    trained = {a for a, mask in zip(segment.tokens.authors, segment.action_mask, strict=True) if mask}
    assert trained == {Author.POLICY}


@pytest.mark.parametrize(
    ("message", "answer", "ended"),
    [
        ("What is your name?", "I am Ann Lee.", False),
        ("Shall I proceed?", "Yes, please.", False),
        ("Is there anything else?", "###STOP###", True),
        ("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.", "###TRANSFER###", True),
        ("Hm.", "I want my money back. Be brief.", False),
    ],
)
def test_scenario_is_played_by_rules(message, answer, ended):
    user = ScenarioUser()
    assert user.open(Episode(TASK, 0)).text == "I want my money back."
    reply = user.answer(message)
    assert (reply.text, reply.ended) == (answer, ended)


def test_exhausted_patience_is_not_a_regular_end():
    user = ScenarioUser(patience=2)
    user.open(Episode(TASK, 0))
    assert not user.answer("Hm.").ended
    assert user.answer("Hm.").ended
    assert user.verdict() == {"user_ended": False, "user_answers": 2}


def test_answer_pattern_with_a_user_is_refused():
    with pytest.raises(OptionError, match="cannot be combined with user"):
        ToolEnvironment(user=Requests, answer="Answer:")


# ------------------------------------------------------------ a model on a server


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


@pytest.fixture
def serve():
    """Start servers that answer requests with these in turn: (status, body); return the recorded requests too."""
    servers = []

    def started(*answers):
        left, requests = list(answers), []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                status, body = left.pop(0) if len(left) > 1 else left[0]
                written = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(written)))
                self.end_headers()
                self.wfile.write(written)

            def log_message(self, *_):
                pass

        server = _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/v1", requests

    yield started
    for server in servers:
        server.shutdown()
        server.server_close()


def completion(text):
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


def test_model_plays_the_user_with_exchanged_roles(serve):
    url, requests = serve(completion("I want my money back."), completion("Ann Lee."), completion("###STOP###"))
    episode = talk(functools.partial(EndpointUser, url=url, model="m"), "Who are you?", "Done.")
    assert episode.ended is EndReason.TERMINATED
    assert episode.final == {"user_ended": True, "user_answers": 3}
    roles = [message["role"] for message in requests[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert requests[-1]["messages"][3]["content"] == "Who are you?"
    assert "reason_for_call: I want my money back." in requests[0]["messages"][0]["content"]


def test_model_calls_the_tools_of_the_user_before_it_answers(serve):
    def look(where: str) -> str:
        """Look somewhere."""
        return where

    def calls(arguments):
        call = {"type": "function", "function": {"name": "look", "arguments": arguments}}
        return 200, {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [call]}}]}

    url, requests = serve(calls('{"where": "up"}'), calls("["), completion("I see the sky."))
    user, seen = EndpointUser(url=url, model="m"), []
    hands = UserTools([look], lambda name, arguments: seen.append((name, arguments)) or "sky")
    assert asyncio.run(_opened(user, {USER_TOOLS: hands})).text == "I see the sky."
    assert seen == [("look", {"where": "up"})]
    assert requests[0]["tools"][0]["function"]["name"] == "look"
    results = [message["content"] for message in requests[-1]["messages"] if message["role"] == "tool"]
    assert results == ["sky", "Error: the arguments are no JSON object"]
    assert user.verdict() == {"user_ended": False, "user_answers": 1}


def test_busy_server_is_retried(serve):
    url, requests = serve((429, "slow down"), (500, "oops"), completion("Hello."))
    user = EndpointUser(url=url, model="m")
    assert asyncio.run(_opened(user)).text == "Hello."
    assert len(requests) == 3


@pytest.mark.parametrize("answer", [(500, "oops"), (200, "prose"), (200, {"choices": []}), (401, "who are you")])
def test_unusable_server_invalidates_the_episode(serve, answer):
    url, requests = serve(answer)
    episode = talk(functools.partial(EndpointUser, url=url, model="m", max_attempts=2), "Hm.")
    assert episode.ended is EndReason.INFRASTRUCTURE
    assert "the request to the model at" in episode.error
    assert len(requests) == (1 if answer[0] == 401 else 2)


def test_unreachable_server_is_reported_without_waiting():
    user = EndpointUser(url="http://127.0.0.1:9/v1", model="m", max_attempts=1)
    with pytest.raises(InfrastructureError, match="the request to the model"):
        asyncio.run(_opened(user))


async def _opened(user, shared=()):
    try:
        return await user.open(Episode(TASK, 0, dict(shared)))
    finally:
        await user.close()
