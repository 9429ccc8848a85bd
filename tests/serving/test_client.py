"""Somebody else's code says in a few lines where an episode begins, of what task it is, and what it was worth."""

import asyncio

import openai
import pytest

import whetstone
from tests_served import HI, TOOL, Scripted, Served, at_a_socket, made, played
from whetstone.chat import assistant
from whetstone.environments.agent import Agent
from whetstone.errors import EngineError
from whetstone.evaluation.contract import play
from whetstone.serving import Keys
from whetstone.serving.access import Key, hashed_key
from whetstone.serving.judging import Judging
from whetstone.serving.recorded import recorded_episodes
from whetstone.trajectory import EndReason, Score, Task
from whetstone.trajectory_json import encoded_trajectory


@pytest.fixture(scope="module")
def assembly():
    return made()


def keys_of(**roles):
    return Keys({hashed_key(name): Key(name, hashed_key(name), role) for name, role in roles.items()})


def at_socket(assembly, work, *lines, **options):
    """What `work` of (the server, where it listens) comes to."""

    async def run():
        served = Served(assembly, engine=Scripted(assembly, *lines), **options)
        async with at_a_socket(served.app) as port:
            return await work(served, f"http://127.0.0.1:{port}/v1")

    return asyncio.run(run())


async def said(ep, messages=HI, **more):
    async with openai.AsyncOpenAI(base_url=ep.base_url, api_key=ep.api_key, max_retries=0) as client:
        told = await client.chat.completions.create(model="tiny", messages=messages, max_tokens=8, **more)
    return told.choices[0].message.content


def test_an_episode_begins_with_its_task_and_seed_and_is_over_and_paid_where_its_block_ends(assembly):
    async def work(served, url):
        async with whetstone.episode("sums-1", base_url=url, seed=7) as ep:
            assert await said(ep) == "5"
            (open_one,) = served.episodes
            assert (open_one.id, open_one.task, open_one.seed) == (ep.id, "sums-1", 7)
            ep.reward(0.25, turn=0)
            ep.reward(1.0)
            ep.reward(0.75)
        return list(served.episodes), served.over

    left, (over,) = at_socket(assembly, work, "5")
    assert not left
    assert (over.task_id, over.score.value, over.turns[0].reward) == ("sums-1", 0.75, 0.25)


def test_without_async_it_is_the_same(assembly):
    async def work(served, url):
        def plain():
            with whetstone.episode(base_url=url, id="by-hand") as ep:
                client = openai.OpenAI(base_url=ep.base_url, api_key=ep.api_key, max_retries=0)
                with client:
                    client.chat.completions.create(model="tiny", messages=HI, max_tokens=8)
                ep.reward(-1)

        await asyncio.to_thread(plain)
        return served.over

    (over,) = at_socket(assembly, work, "5")
    assert (over.id, over.score.value) == ("by-hand/by-hand", -1.0)


def test_an_agent_that_falls_over_leaves_an_episode_that_is_over_and_worth_nothing_that_was_not_said(assembly):
    async def work(served, url):
        async def falling(messages):
            async with whetstone.episode(base_url=url) as ep:
                if messages:
                    await said(ep, messages)
                raise ZeroDivisionError

        for messages in (HI, []):  # nothing is said in the second
            with pytest.raises(ZeroDivisionError):
                await falling(messages)
        return list(served.episodes), served.over

    left, (over,) = at_socket(assembly, work, "5")
    assert not left
    assert over.score is None


def test_what_a_server_refuses_is_said_in_a_line(assembly, monkeypatch):
    async def work(served, url):
        found = []
        for options in ({"id": "a/b"}, {"task": Task("t", "")}, {"id": "there"}, {"api_key": "wrong"}, {"seed": -1}):
            with pytest.raises(EngineError) as caught:
                async with whetstone.episode(**{"base_url": url, "api_key": "k", **options}):
                    pass
            found.append(str(caught.value))
        async with whetstone.episode(base_url=url, api_key="use"):
            pass  # a key that may not pay may end what it began

        async def paying():
            async with whetstone.episode(base_url=url, api_key="use") as ep:
                await said(ep)
                ep.reward(1.0)

        with pytest.raises(EngineError, match="may not pay"):
            await paying()
        return found

    async def there(served, url):
        served.episodes.opened(Key("k", ""), {"id": "there"})
        return await work(served, url)

    found = at_socket(assembly, there, "5", keys=keys_of(k="reward", use="use"))
    hints = ("printable signs", "nobody judges here (whetstone serve --judge)", 'an episode "there" already',
             "Incorrect API key", "seed: a whole number")  # fmt: skip
    for line, hint in zip(found, hints, strict=True):
        assert hint in line
        assert "\n" not in line
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9/v1/episodes: "), whetstone.episode():
        pass


def test_in_training_the_episode_is_the_one_the_agent_is_given():
    async def agent(task, base_url, api_key):
        async with whetstone.episode(base_url=base_url, api_key=api_key) as ep:
            await said(ep)
            ep.reward(0.5)

    def answer(conversation, *_):
        return assistant(conversation[-1].text)

    done = asyncio.run(play(lambda: Agent(function=agent), Task("t", "x", {}), answer, seed=0, max_turns=4))
    assert done.trajectory.final == {"score": 0.5, "success": False}
    with pytest.raises(EngineError, match="id and seed have no effect"):
        whetstone.episode(base_url="http://127.0.0.1:1/episodes/a/v1", seed=1)


async def right(trajectory, task):
    """Paid by what the task keeps."""
    correct = trajectory.final_text == task.private["answer"]
    return Score(float(correct), success=correct)


def test_the_recipes_reward_judges_what_nobody_paid_and_where_it_cannot_tell_that_is_on_record(assembly, tmp_path):
    lines = []

    async def work(served, url):
        judging = Judging(right, served.over.append, say=lines.append)
        served.episodes.judging = judging
        for answer in ("5", "6"):
            async with whetstone.episode(Task("sum", "2+3", {"answer": answer}), base_url=url) as ep:
                await said(ep)
        async with whetstone.episode("named", base_url=url) as ep:
            await said(ep)
        async with whetstone.episode(Task("paid", "", {"answer": "6"}), base_url=url) as ep:
            await said(ep)
            ep.reward(0.5)
        await judging.settled()
        return served.over

    over = {t.id.partition("/")[0] + str(i): t for i, t in enumerate(at_socket(assembly, work, *"5555"))}
    worth = sorted((t.task_id, t.score.value if t.score else None) for t in over.values() if t.task_id != "named")
    assert worth == [("paid", 0.5), ("sum", 0.0), ("sum", 1.0)]
    (unknown,) = (t for t in over.values() if t.task_id == "named")
    assert unknown.score is None
    assert unknown.ended is EndReason.ERROR
    assert "the task's private data has nothing" in unknown.error
    assert len(lines) == 1
    path = tmp_path / "said.jsonl"
    path.write_bytes(b"".join(encoded_trajectory(t) + b"\n" for t in over.values()))
    (told,) = (each for each in recorded_episodes(path) if each.task == "named")
    assert told.why == (f"left out of training: {unknown.error}",)


def test_why_says_of_a_recorded_file_which_tokens_can_be_trained_and_why_the_rest_cannot(assembly, tmp_path):
    async def work(served):
        client = served.client("/episodes/e1")
        await client.chat.completions.create(
            model="tiny", messages=HI, tools=[TOOL], tool_choice="required", max_tokens=60, seed=1
        )
        await client.chat.completions.create(model="tiny", messages=[*HI, *HI], max_tokens=4, seed=1)
        served.episodes.close()
        return served.over

    (over,) = played(assembly, work)
    path = tmp_path / "said.jsonl"
    path.write_bytes(encoded_trajectory(over) + b"\nhalf a li")
    (told,) = recorded_episodes(path, "e1")
    forced = sum(author == "spliced" for author in over.turns[0].action.authors)
    assert forced > 0
    assert told.why == ("nobody said what it was worth: its words can be imitated, its rewards not learned from",)
    assert [turn.trained for turn in told.turns] == [len(over.turns[0].action) - forced, told.turns[1].drawn]
    assert told.turns[0].why[0].startswith(f"{forced} not trained: inserted, not sampled")
    assert told.turns[1].why == (
        "in a segment of its own: what was sent did not go on, word for word, from the answer before it",
    )
    trained = sum(sum(segment.action_mask) for segment in over.segments())
    assert told.trained == trained  # what is told is what a learner's mask says
    assert told.turns[0].versions == (0,)
