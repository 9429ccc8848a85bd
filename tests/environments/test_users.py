"""Users: scripts, and a model behind an address that is slow, busy, down or talks nonsense."""

import asyncio
import functools
import http.server
import json
import threading

import pytest

from tests_episodes import CHAT, LIMITS, Says, in_order
from whetstone.chat import assistant
from whetstone.environments import ToolEnvironment
from whetstone.environments.users import EndpointUser, Requests, ScenarioUser
from whetstone.environments.users.hands import HANDS, Hands
from whetstone.errors import InfrastructureError
from whetstone.plugins import OptionError
from whetstone.rollout import run_episode
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Author, EndReason, Task

pytestmark = pytest.mark.usefixtures("impatient")

SCENARIO = {"reason_for_call": "I want my money back.", "known_info": "I am Ann Lee.", "task_instructions": "Be brief."}
TASK = Task("u", "", {"scenario": SCENARIO, "requests": ["First this.", "Then that."]})


def talk(user, *said):
    environment = ToolEnvironment(user=user)
    actor = Says(in_order(*map(assistant, said)))
    return asyncio.run(
        run_episode(TASK, environment=environment, actor=actor, chat=CHAT, limits=LIMITS, id="e", seed=1)
    )


def test_what_is_no_call_is_said_to_the_user_whose_tokens_are_marked():
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
    ("said", "answer", "ended"),
    [
        ("What is your name?", "I am Ann Lee.", False),
        ("Shall I proceed?", "Yes, please.", False),
        ("Is there anything else?", "###STOP###", True),
        ("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.", "###TRANSFER###", True),
        ("Hm.", "I want my money back. Be brief.", False),
    ],
)
def test_a_scenario_is_played_by_rules(said, answer, ended):
    user = ScenarioUser()
    assert user.open(Episode(TASK, 0)).text == "I want my money back."
    reply = user.answer(said)
    assert (reply.text, reply.ended) == (answer, ended)


def test_patience_ends_and_is_no_proper_end():
    user = ScenarioUser(patience=2)
    user.open(Episode(TASK, 0))
    assert not user.answer("Hm.").ended
    assert user.answer("Hm.").ended
    assert user.verdict() == {"user_ended": False, "user_answers": 2}


def test_an_answer_pattern_beside_a_user_is_refused():
    with pytest.raises(OptionError, match="there is a user"):
        ToolEnvironment(user=Requests, answer="Answer:")


# ------------------------------------------------------------ a model behind an address


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


@pytest.fixture
def serve():
    """A server that answers each request with the next of these: (status, body), and remembers what it was asked."""
    servers = []

    def started(*answers):
        left, asked = list(answers), []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
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
        return f"http://127.0.0.1:{server.server_address[1]}/v1", asked

    yield started
    for server in servers:
        server.shutdown()
        server.server_close()


def says(text):
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


def test_a_model_plays_the_user_with_the_roles_exchanged(serve):
    url, asked = serve(says("I want my money back."), says("Ann Lee."), says("###STOP###"))
    episode = talk(functools.partial(EndpointUser, url=url, model="m"), "Who are you?", "Done.")
    assert episode.ended is EndReason.TERMINATED
    assert episode.final == {"user_ended": True, "user_answers": 3}
    roles = [message["role"] for message in asked[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert asked[-1]["messages"][3]["content"] == "Who are you?"
    assert "reason_for_call: I want my money back." in asked[0]["messages"][0]["content"]


def test_a_model_uses_what_the_user_has_in_his_hands_before_he_answers(serve):
    def look(where: str) -> str:
        """Look somewhere."""
        return where

    def calls(arguments):
        call = {"type": "function", "function": {"name": "look", "arguments": arguments}}
        return 200, {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [call]}}]}

    url, asked = serve(calls('{"where": "up"}'), calls("["), says("I see the sky."))
    user, seen = EndpointUser(url=url, model="m"), []
    hands = Hands([look], lambda name, given: seen.append((name, given)) or "sky")
    assert asyncio.run(_opened(user, {HANDS: hands})).text == "I see the sky."
    assert seen == [("look", {"where": "up"})]
    assert asked[0]["tools"][0]["function"]["name"] == "look"
    told = [message["content"] for message in asked[-1]["messages"] if message["role"] == "tool"]
    assert told == ["sky", "Error: the arguments are no JSON object"]
    assert user.verdict() == {"user_ended": False, "user_answers": 1}


def test_a_busy_server_is_asked_again(serve):
    url, asked = serve((429, "slow down"), (500, "oops"), says("Hello."))
    user = EndpointUser(url=url, model="m")
    assert asyncio.run(_opened(user)).text == "Hello."
    assert len(asked) == 3


@pytest.mark.parametrize("answer", [(500, "oops"), (200, "prose"), (200, {"choices": []}), (401, "who are you")])
def test_a_server_that_is_of_no_use_makes_the_episode_invalid(serve, answer):
    url, asked = serve(answer)
    episode = talk(functools.partial(EndpointUser, url=url, model="m", max_attempts=2), "Hm.")
    assert episode.ended is EndReason.INFRASTRUCTURE
    assert "could not be asked" in episode.error
    assert len(asked) == (1 if answer[0] == 401 else 2)


def test_nobody_there_is_said_and_not_waited_for():
    user = EndpointUser(url="http://127.0.0.1:9/v1", model="m", max_attempts=1)
    with pytest.raises(InfrastructureError, match="could not be asked"):
        asyncio.run(_opened(user))


async def _opened(user, shared=()):
    try:
        return await user.open(Episode(TASK, 0, dict(shared)))
    finally:
        await user.close()
