"""Impossible requests are refused in the format of the API with the correct alternative."""

import pytest

from support.served_policy import HI, TOOL, build_assembly, played
from whetstone.serving import Keys
from whetstone.serving.api_keys import Key, hash_key

CHAT = "/v1/chat/completions"
ASKED = {"model": "tiny", "messages": HI, "max_tokens": 2}
OTHER = {"type": "function", "function": {"name": "other"}}


@pytest.fixture(scope="module")
def assembly():
    return build_assembly()


def keys_of(**roles):
    return Keys({hash_key(name): Key(name, hash_key(name), role) for name, role in roles.items()})


@pytest.mark.parametrize(
    ("path", "more", "status", "code", "message"),
    [
        (CHAT, {"model": "gpt-9"}, 404, "model_not_found", "does not exist; this server has `tiny`"),
        ("/v1/completions", {"model": None, "prompt": "x"}, 404, "model_not_found", "this server has `tiny`"),
        (CHAT, {"best_of": 3}, 400, "unsupported_parameter", "cannot be recorded"),
        ("/v1/completions", {"prompt": "x", "best_of": 3}, 400, "unsupported_parameter", "cannot be recorded"),
        (CHAT, {"tools": [TOOL, TOOL]}, 400, None, 'duplicate tool "add"'),
        (CHAT, {"tools": [TOOL], "tool_choice": OTHER}, 400, None, '"other", which is not among the tools'),
        (CHAT, {"tool_choice": "required"}, 400, None, "needs tools, and the request has none"),
        (CHAT, {"functions": [TOOL]}, 400, "unsupported_parameter", "is the old name of tools"),
        (CHAT, {"tools": [TOOL], "response_format": {"type": "json_object"}}, 400, None, "tool_choice: none"),
    ],
)
def test_impossible_request_is_refused_with_the_alternative(assembly, path, more, status, code, message):
    async def work(served):
        async with served.http() as http:
            body = {**(ASKED if path == CHAT else {"model": "tiny"}), **more}
            answer = await http.post(path, json=body)
            return answer.status_code, answer.json()["error"]

    status_code, error = played(assembly, work)
    assert (status_code, error["code"]) == (status, code)
    assert message in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_reward_for_an_ended_unknown_or_foreign_episode_is_refused_with_a_hint(assembly):
    keys = keys_of(a="reward", b="reward", c="use")

    async def work(served):
        async with served.http() as http:

            async def paid(id, key, body):
                answer = await http.post(f"/v1/episodes/{id}/reward", json=body, headers={"x-api-key": key})
                return answer.status_code, (answer.json().get("error") or {}).get("message", "")

            for name, key in (("e1", "a"), ("e2", "c")):
                await http.post(f"/episodes/{name}{CHAT}", json=ASKED, headers={"x-api-key": key})
            responses = [
                await paid("e0", "a", {"reward": 1}),
                await paid("e1", "b", {"reward": 1}),
                await paid("e2", "c", {"reward": 1}),
                await paid("e1", "a", {"reward": float(2**60), "worth": 1}),
                await paid("e1", "a", {"reward": True}),
                await paid("e1", "a", {"turn": 1, "reward": 1}),
                await paid("e1", "a", {"turn": 0}),
                await paid("e1", "a", {"reward": 0.25}),
                await paid("e1", "a", {"reward": 1}),
            ]
            return responses, [each.score.value for each in served.over]

    responses, reward = played(assembly, work, keys=keys)
    assert [status for status, _ in responses] == [404, 404, 403, 400, 400, 400, 400, 200, 409]
    hints = ("x-whetstone-episode", "x-whetstone-episode", "role reward", "allowed: reward, turn", "number",
             "1 answers, counted from 0", "number", "", "start another")  # fmt: skip
    for (_, message), hint in zip(responses, hints, strict=True):
        assert hint in message
    assert reward == [0.25]
