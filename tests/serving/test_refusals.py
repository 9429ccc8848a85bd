"""What cannot be done is refused in the shape of the API that was spoken, with what would be right."""

import pytest

from tests_served import HI, TOOL, made, played
from whetstone.serving import Keys
from whetstone.serving.access import Key, hashed_key

CHAT = "/v1/chat/completions"
ASKED = {"model": "tiny", "messages": HI, "max_tokens": 2}
OTHER = {"type": "function", "function": {"name": "other"}}


@pytest.fixture(scope="module")
def assembly():
    return made()


def keys_of(**roles):
    return Keys({hashed_key(name): Key(name, hashed_key(name), role) for name, role in roles.items()})


@pytest.mark.parametrize(
    ("path", "more", "status", "code", "said"),
    [
        (CHAT, {"model": "gpt-9"}, 404, "model_not_found", "does not exist; there is `tiny`"),
        ("/v1/completions", {"model": None, "prompt": "x"}, 404, "model_not_found", "there is `tiny`"),
        (CHAT, {"best_of": 3}, 400, "unsupported_parameter", "could not be recorded"),
        ("/v1/completions", {"prompt": "x", "best_of": 3}, 400, "unsupported_parameter", "could not be recorded"),
        (CHAT, {"tools": [TOOL, TOOL]}, 400, None, 'there is a tool "add" already'),
        (CHAT, {"tools": [TOOL], "tool_choice": OTHER}, 400, None, '"other", which is not among the tools'),
        (CHAT, {"tool_choice": "required"}, 400, None, "required, and there are no tools"),
        (CHAT, {"functions": [TOOL]}, 400, "unsupported_parameter", "is the old name of tools"),
        (CHAT, {"tools": [TOOL], "response_format": {"type": "json_object"}}, 400, None, "tool_choice: none"),
    ],
)
def test_a_request_that_asks_for_what_cannot_be_is_refused_with_the_right_thing(
    assembly, path, more, status, code, said
):
    async def work(served):
        async with served.http() as http:
            asked = {**(ASKED if path == CHAT else {"model": "tiny"}), **more}
            answer = await http.post(path, json=asked)
            return answer.status_code, answer.json()["error"]

    told, error = played(assembly, work)
    assert (told, error["code"]) == (status, code)
    assert said in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_a_reward_for_an_episode_that_is_over_unknown_or_anothers_is_refused_with_a_hint_and_changes_nothing(assembly):
    keys = keys_of(a="reward", b="reward", c="use")

    async def work(served):
        async with served.http() as http:

            async def paid(id, key, body):
                answer = await http.post(f"/v1/episodes/{id}/reward", json=body, headers={"x-api-key": key})
                return answer.status_code, (answer.json().get("error") or {}).get("message", "")

            for name, key in (("e1", "a"), ("e2", "c")):
                await http.post(f"/episodes/{name}{CHAT}", json=ASKED, headers={"x-api-key": key})
            found = [
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
            return found, [each.score.value for each in served.over]

    found, worth = played(assembly, work, keys=keys)
    assert [status for status, _ in found] == [404, 404, 403, 400, 400, 400, 400, 200, 409]
    hints = ("x-whetstone-episode", "x-whetstone-episode", "role reward", "there are reward, turn", "a number is asked",
             "1 answers, from 0", "a number is asked", "", "begin another")  # fmt: skip
    for (_, said), hint in zip(found, hints, strict=True):
        assert hint in said
    assert worth == [0.25]
