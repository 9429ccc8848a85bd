"""Memory of the function-calling leaderboard: what is said in one conversation and asked for in another."""

import asyncio
import importlib.util
import json
from types import SimpleNamespace

import pytest

from tests_worlds import environment_of, source_of
from whetstone.chat import ToolCall, assistant
from whetstone.environments.bfcl.memory import answered, exported, fill, restore, text_of
from whetstone.environments.bfcl.package import memory_of
from whetstone.errors import RecipeError, TaskError
from whetstone.evaluation.contract import play
from whetstone.rewards import verdict

needs_package = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("bfcl_eval", "overrides", "rank_bm25"))),
    reason="the leaderboard's memories are not there: pip install --no-deps bfcl-eval overrides rank-bm25",
)


def played(task, steps, **options):
    left = iter(steps)
    make = lambda: environment_of("bfcl_memory", **options)  # noqa: E731
    one = asyncio.run(play(make, task, lambda *_: next(left), seed=0, max_turns=len(steps))).trajectory
    return asyncio.run(verdict(one, task)), one


def by_expert(source, task, **options):
    make = lambda: environment_of("bfcl_memory", **options)  # noqa: E731
    expert = lambda conversation, tools, _: source.demonstrate(task, conversation, tools)  # noqa: E731
    one = asyncio.run(play(make, task, expert, seed=0, max_turns=60)).trajectory
    return asyncio.run(verdict(one, task)), one


@pytest.mark.parametrize(
    ("said", "accepted", "right"),
    [
        ("{'answer': 'April 1, 2024', 'context': ''}", ["april 1 2024"], True),
        ("It is 135.", ["35"], False),
        ("three-point-five", ["threepointfive"], True),
        ("Ann's", ['ann"s'], True),
        ("", ["35", "x"], False),
    ],
)
def test_an_answer_counts_as_a_whole_whatever_its_case_and_punctuation(said, accepted, right):
    assert answered(said, accepted) is right


def test_what_was_said_is_held_as_far_as_there_is_room_the_latest_of_it():
    said = [f"word{number:05d} " * 10 for number in range(2000)]  # 200,000 characters; fifty entries hold half
    pairs = SimpleNamespace(core_memory={}, archival_memory={})
    fill(pairs, "kv", said)
    assert len(pairs.archival_memory) == 50
    assert max(map(len, pairs.archival_memory.values())) <= 2000
    assert "word01999" in text_of(pairs, "kv")
    assert "word00000" not in text_of(pairs, "kv")
    whole = SimpleNamespace(memory="")
    fill(whole, "rec_sum", ["I like tea.", "And rice."])
    assert whole.memory == "I like tea.\nAnd rice."
    other = SimpleNamespace(memory="")
    restore(other, "rec_sum", exported(whole, "rec_sum"))
    assert other.memory == whole.memory


@needs_package
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["kv", "rec_sum"])
def test_the_expert_answers_and_whoever_does_not_know_is_wrong(backend):
    source = source_of("bfcl_memory", backend=backend)
    tasks = source.held_out(1000)
    assert len(tasks) == 155
    for task in tasks[::10]:
        assert by_expert(source, task)[0].success
        assert not played(task, [assistant("I do not know.")])[0].success


@needs_package
@pytest.mark.slow
def test_conversations_leave_behind_what_questions_find(tmp_path):
    said = source_of("bfcl_memory", part="conversations")
    asked = source_of("bfcl_memory")
    chain = [task for task in said.held_out(1000) if task.private["scenario"] == "notetaker"]
    with pytest.raises(TaskError, match="play the conversations of this scenario first"):
        played(chain[1], [assistant("Hello.")], folder=str(tmp_path))
    for task in chain:
        score, one = by_expert(said, task, folder=str(tmp_path))
        assert (score.success, one.final["kept"]) == (True, one.final["asked"])
    written = json.loads((tmp_path / "kv" / "notetaker.json").read_text())
    assert len(written["archival_memory"]) == sum(len(task.private["question"]) for task in chain)
    question = next(task for task in asked.held_out(1000) if task.private["scenario"] == "notetaker")
    key = next(iter(written["archival_memory"]))
    look = assistant("", ToolCall("archival_memory_retrieve", json.dumps({"key": key})))
    _, one = played(question, [look, assistant("Hm.")], folder=str(tmp_path))
    assert json.loads(one.turns[0].observation[0].text) == {"value": written["archival_memory"][key]}


@needs_package
def test_who_writes_nothing_down_has_nothing():
    source = source_of("bfcl_memory", part="conversations")
    task = source.held_out(1)[0]
    silent = [assistant("Nice.")] * len(task.private["question"])
    score, one = played(task, silent)
    assert (score.success, one.final["kept"]) == (False, 0)


@needs_package
def test_a_memory_that_is_not_there_is_named():
    with pytest.raises(RecipeError, match='no memory "kw"; there are kv'):
        memory_of("kw")
    if importlib.util.find_spec("faiss") is None:
        with pytest.raises(RecipeError, match="pip install overrides sentence-transformers faiss-cpu"):
            memory_of("vector")
