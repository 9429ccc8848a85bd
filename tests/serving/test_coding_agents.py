"""Requests of coding agents: each is answered, its tokens are recorded once, and its episode is one segment."""

import asyncio
from functools import cache

import pytest

from support.coding_agent_requests import claude_code, codex, mini_swe_agent, opencode, read_response
from support.served_policy import Scripted, build_assembly, called, played
from whetstone.chat import assistant

AGENTS = [claude_code, codex, opencode, mini_swe_agent]
COMMANDS = ["echo first > one.txt", "echo second > two.txt"]


@cache
def assembly():
    return build_assembly("policy.tiny.context_length=8192")


async def sent(http, agent, steps, name="e"):
    path, body = agent(steps)
    response = await http.post(f"/episodes/{name}/v1/{path}", json=body)
    assert response.status_code == 200, response.text
    return read_response(path, response.text)


async def run_agent(http, agent, name="e", commands=COMMANDS):
    """Send the requests of a task of several files."""
    steps = []
    for _ in commands:
        steps.append((await sent(http, agent, steps, name), "done"))
        await asyncio.sleep(0)
    return await sent(http, agent, steps, name)


@pytest.mark.parametrize("agent", AGENTS)
def test_recorded_tokens_of_a_coding_agent_are_those_that_were_served(agent):
    lines = [*(called("Shell", command=each) for each in COMMANDS), assistant("Both are written.")]
    engine = Scripted(assembly(), *lines)

    async def work(served):
        async with served.http() as http:
            await run_agent(http, agent)
        served.episodes.close()
        return served.over

    (episode,) = played(assembly(), work, engine=engine)
    written = [assembly().chat.write(line, ()) for line in lines]
    assert [list(turn.action.ids) for turn in episode.turns] == [list(ids) for ids in written]
    assert [turn.opens_segment for turn in episode.turns] == [True, False, False]
    (segment,) = episode.segments()
    assert sum(segment.action_mask) == sum(map(len, written))
    # the last prompt contains all earlier answers, so that the segment is the last prompt and the last answer
    assert segment.tokens.ids == (*engine.prompts[-1][0], *written[-1])


def test_call_of_a_namespace_is_returned_with_its_namespace_and_recognized():
    engine = Scripted(assembly(), called("spawn", command="look"), called("Shell", command="ls"), assistant("Done."))

    async def work(served):
        async with served.http() as http:
            first = await sent(http, codex, [])
            (call,) = first["output"]
            assert (call["name"], call["namespace"]) == ("spawn", "helpers")
            second = await sent(http, codex, [(first, "found nothing")])
            assert "namespace" not in second["output"][0]
        served.episodes.close()
        return served.over

    (episode,) = played(assembly(), work, engine=engine)
    assert [turn.opens_segment for turn in episode.turns] == [True, False]


def test_context_edit_that_removes_messages_is_refused():
    async def work(served):
        path, body = claude_code([])
        body["context_management"] = {"edits": [{"type": "clear_tool_uses_20250919"}]}
        async with served.http() as http:
            response = await http.post(f"/v1/{path}", json=body)
            counted = await http.post(
                "/v1/messages/count_tokens",
                json={key: body[key] for key in ("model", "messages", "system", "tools", "thinking")},
            )
        return response, counted

    response, counted = played(assembly(), work)
    assert response.status_code == 400
    assert "clear_tool_uses_20250919 is not supported; remove it" in response.json()["error"]["message"]
    assert counted.json()["input_tokens"] > 50
