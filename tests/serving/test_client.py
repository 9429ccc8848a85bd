"""The client: a few lines of any program mark the start of an episode, its task and its reward."""

import asyncio

import openai
import pytest

import whetstone
from support.served_policy import HI, TOOL, Scripted, Served, at_a_socket, build_assembly, played
from whetstone.chat import assistant
from whetstone.environments.external_agent import ExternalAgent
from whetstone.errors import EngineError
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.serving import Keys
from whetstone.serving.api_keys import Key, hash_key
from whetstone.serving.reward_scoring import RewardScorer
from whetstone.serving.trainable_tokens import recorded_episodes
from whetstone.trajectory import EndReason, Score, Task
from whetstone.trajectory_json import encode_trajectory


@pytest.fixture(scope="module")
def assembly():
    return build_assembly()


def keys_of(**roles):
    return Keys({hash_key(name): Key(name, hash_key(name), role) for name, role in roles.items()})


def with_server(assembly, work, *lines, **options):
    """Return the result of `work`, called with the server and its address."""

    async def run():
        served = Served(assembly, engine=Scripted(assembly, *lines), **options)
        async with at_a_socket(served.app) as port:
            return await work(served, f"http://127.0.0.1:{port}/v1")

    return asyncio.run(run())


async def complete(ep, messages=HI, **more):
    async with openai.AsyncOpenAI(base_url=ep.base_url, api_key=ep.api_key, max_retries=0) as client:
        response = await client.chat.completions.create(model="tiny", messages=messages, max_tokens=8, **more)
    return response.choices[0].message.content


def test_episode_starts_with_its_task_and_seed_and_ends_with_its_block(assembly):
    async def work(served, url):
        async with whetstone.episode("sums-1", base_url=url, seed=7) as ep:
            assert await complete(ep) == "5"
            (open_one,) = served.episodes
            assert (open_one.id, open_one.task, open_one.seed) == (ep.id, "sums-1", 7)
            ep.reward(0.25, turn=0)
            ep.reward(1.0)
            ep.reward(0.75)
        return list(served.episodes), served.over

    left, (over,) = with_server(assembly, work, "5")
    assert not left
    assert (over.task_id, over.score.value, over.turns[0].reward) == ("sums-1", 0.75, 0.25)


def test_synchronous_client_behaves_the_same(assembly):
    async def work(served, url):
        def plain():
            with whetstone.episode(base_url=url, id="by-hand") as ep:
                client = openai.OpenAI(base_url=ep.base_url, api_key=ep.api_key, max_retries=0)
                with client:
                    client.chat.completions.create(model="tiny", messages=HI, max_tokens=8)
                ep.reward(-1)

        await asyncio.to_thread(plain)
        return served.over

    (over,) = with_server(assembly, work, "5")
    assert (over.id, over.score.value) == ("by-hand/by-hand", -1.0)


def test_failing_agent_leaves_an_ended_episode_without_a_reward(assembly):
    async def work(served, url):
        async def falling(messages):
            async with whetstone.episode(base_url=url) as ep:
                if messages:
                    await complete(ep, messages)
                raise ZeroDivisionError

        for messages in (HI, []):  # the second has no request
            with pytest.raises(ZeroDivisionError):
                await falling(messages)
        return list(served.episodes), served.over

    left, (over,) = with_server(assembly, work, "5")
    assert not left
    assert over.score is None


def test_refusal_of_a_server_is_one_line(assembly, monkeypatch):
    async def work(served, url):
        messages = []
        for options in ({"id": "a/b"}, {"task": Task("t", "")}, {"id": "there"}, {"api_key": "wrong"}, {"seed": -1}):
            with pytest.raises(EngineError) as caught:
                async with whetstone.episode(**{"base_url": url, "api_key": "k", **options}):
                    pass
            messages.append(str(caught.value))
        async with whetstone.episode(base_url=url, api_key="use"):
            pass  # a key without the right to reward can end its own episodes

        async def paying():
            async with whetstone.episode(base_url=url, api_key="use") as ep:
                await complete(ep)
                ep.reward(1.0)

        with pytest.raises(EngineError, match="may not reward"):
            await paying()
        return messages

    async def refusals(served, url):
        served.episodes.open_episode(Key("k", ""), {"id": "there"})
        return await work(served, url)

    messages = with_server(assembly, refusals, "5", keys=keys_of(k="reward", use="use"))
    hints = ("printable ASCII", "this server does not score", 'episode "there" exists already',
             "Incorrect API key", "seed: a whole number")  # fmt: skip
    for line, hint in zip(messages, hints, strict=True):
        assert hint in line
        assert "\n" not in line
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9/v1/episodes: "), whetstone.episode():
        pass


def test_agent_in_training_uses_the_episode_it_receives():
    async def agent(task, base_url, api_key):
        async with whetstone.episode(base_url=base_url, api_key=api_key) as ep:
            await complete(ep)
            ep.reward(0.5)

    def answer(conversation, *_):
        return assistant(conversation[-1].text)

    done = asyncio.run(
        play_with_policy(lambda: ExternalAgent(function=agent), Task("t", "x", {}), answer, seed=0, max_turns=4)
    )
    assert done.trajectory.final == {"score": 0.5, "success": False}
    with pytest.raises(EngineError, match="leave out id and seed"):
        whetstone.episode(base_url="http://127.0.0.1:1/episodes/a/v1", seed=1)


async def reward_from_task(trajectory, task):
    """Score by the private data of the task."""
    correct = trajectory.final_text == task.private["answer"]
    return Score(float(correct), success=correct)


def test_recipe_reward_scores_unrewarded_episodes_and_records_unknown_scores(assembly, tmp_path):
    lines = []

    async def work(served, url):
        judging = RewardScorer(reward_from_task, served.over.append, say=lines.append)
        served.episodes.judging = judging
        for answer in ("5", "6"):
            async with whetstone.episode(Task("sum", "2+3", {"answer": answer}), base_url=url) as ep:
                await complete(ep)
        async with whetstone.episode("named", base_url=url) as ep:
            await complete(ep)
        async with whetstone.episode(Task("paid", "", {"answer": "6"}), base_url=url) as ep:
            await complete(ep)
            ep.reward(0.5)
        await judging.wait_idle()
        return served.over

    over = {t.id.partition("/")[0] + str(i): t for i, t in enumerate(with_server(assembly, work, *"5555"))}
    scores = sorted((t.task_id, t.score.value if t.score else None) for t in over.values() if t.task_id != "named")
    assert scores == [("paid", 0.5), ("sum", 0.0), ("sum", 1.0)]
    (unknown,) = (t for t in over.values() if t.task_id == "named")
    assert unknown.score is None
    assert unknown.ended is EndReason.ERROR
    assert "the task's private data has nothing" in unknown.error
    assert len(lines) == 1
    path = tmp_path / "said.jsonl"
    path.write_bytes(b"".join(encode_trajectory(t) + b"\n" for t in over.values()))
    (recorded,) = (each for each in recorded_episodes(path) if each.task == "named")
    assert recorded.why == (f"excluded from training: {unknown.error}",)


def test_why_lists_trainable_tokens_of_a_recorded_file_and_reasons(assembly, tmp_path):
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
    path.write_bytes(encode_trajectory(over) + b"\nhalf a li")
    (recorded,) = recorded_episodes(path, "e1")
    forced = sum(author == "spliced" for author in over.turns[0].action.authors)
    assert forced > 0
    assert recorded.why == ("no reward: it can be imitated, but not trained on by reinforcement",)
    assert [turn.trained for turn in recorded.turns] == [len(over.turns[0].action) - forced, recorded.turns[1].drawn]
    assert recorded.turns[0].why[0].startswith(f"{forced} not trained: inserted, not sampled")
    assert recorded.turns[1].why == (
        "new segment: the request did not continue word for word from the previous answer",
    )
    trained = sum(sum(segment.action_mask) for segment in over.segments())
    assert recorded.trained == trained  # the report equals the mask of the learner
    assert recorded.turns[0].versions == (0,)
