"""BFCL memory: facts of one conversation are asked for in another."""

import asyncio
import importlib.util
import json
from types import SimpleNamespace

import pytest

from support.environments import environment_of, source_of
from whetstone.chat import ToolCall, assistant
from whetstone.environments.bfcl.memory import contains_answer, export_memory, fill_memory, memory_text, restore_memory
from whetstone.environments.bfcl.package import create_memory
from whetstone.errors import RecipeError, TaskError
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.rewards import verdict

needs_package = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("bfcl_eval", "overrides", "rank_bm25"))),
    reason="the leaderboard's memories are not there: pip install --no-deps bfcl-eval overrides rank-bm25",
)


def played(task, steps, **options):
    left = iter(steps)
    make = lambda: environment_of("bfcl_memory", **options)  # noqa: E731
    one = asyncio.run(play_with_policy(make, task, lambda *_: next(left), seed=0, max_turns=len(steps))).trajectory
    return asyncio.run(verdict(one, task)), one


def by_expert(source, task, **options):
    make = lambda: environment_of("bfcl_memory", **options)  # noqa: E731
    expert = lambda conversation, tools, _: source.demonstrate(task, conversation, tools)  # noqa: E731
    one = asyncio.run(play_with_policy(make, task, expert, seed=0, max_turns=60)).trajectory
    return asyncio.run(verdict(one, task)), one


@pytest.mark.parametrize(
    ("answer", "accepted", "right"),
    [
        ("{'answer': 'April 1, 2024', 'context': ''}", ["april 1 2024"], True),
        ("It is 135.", ["35"], False),
        ("three-point-five", ["threepointfive"], True),
        ("Ann's", ['ann"s'], True),
        ("", ["35", "x"], False),
    ],
)
def test_answers_match_whole_words_ignoring_case_and_punctuation(answer, accepted, right):
    assert contains_answer(answer, accepted) is right


def test_memory_keeps_the_latest_text_within_its_capacity():
    texts = [f"word{number:05d} " * 10 for number in range(2000)]  # 200,000 characters; fifty entries hold half
    pairs = SimpleNamespace(core_memory={}, archival_memory={})
    fill_memory(pairs, "kv", texts)
    assert len(pairs.archival_memory) == 50
    assert max(map(len, pairs.archival_memory.values())) <= 2000
    assert "word01999" in memory_text(pairs, "kv")
    assert "word00000" not in memory_text(pairs, "kv")
    unlimited = SimpleNamespace(memory="")
    fill_memory(unlimited, "rec_sum", ["I like tea.", "And rice."])
    assert unlimited.memory == "I like tea.\nAnd rice."
    other = SimpleNamespace(memory="")
    restore_memory(other, "rec_sum", export_memory(unlimited, "rec_sum"))
    assert other.memory == unlimited.memory


@needs_package
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["kv", "rec_sum"])
def test_expert_succeeds_and_unknown_answers_fail(backend):
    source = source_of("bfcl_memory", backend=backend)
    tasks = source.held_out(1000)
    assert len(tasks) == 155
    for task in tasks[::10]:
        assert by_expert(source, task)[0].success
        assert not played(task, [assistant("I do not know.")])[0].success


@needs_package
@pytest.mark.slow
def test_conversations_store_entries_that_questions_retrieve(tmp_path):
    conversations = source_of("bfcl_memory", part="conversations")
    questions = source_of("bfcl_memory")
    chain = [task for task in conversations.held_out(1000) if task.private["scenario"] == "notetaker"]
    with pytest.raises(TaskError, match="play the conversations of this scenario first"):
        played(chain[1], [assistant("Hello.")], folder=str(tmp_path))
    for task in chain:
        score, one = by_expert(conversations, task, folder=str(tmp_path))
        assert (score.success, one.final["kept"]) == (True, one.final["asked"])
    written = json.loads((tmp_path / "kv" / "notetaker.json").read_text())
    assert len(written["archival_memory"]) == sum(len(task.private["question"]) for task in chain)
    question = next(task for task in questions.held_out(1000) if task.private["scenario"] == "notetaker")
    key = next(iter(written["archival_memory"]))
    look = assistant("", ToolCall("archival_memory_retrieve", json.dumps({"key": key})))
    _, one = played(question, [look, assistant("Hm.")], folder=str(tmp_path))
    assert json.loads(one.turns[0].observation[0].text) == {"value": written["archival_memory"][key]}


@needs_package
def test_policy_that_stores_nothing_has_an_empty_memory():
    source = source_of("bfcl_memory", part="conversations")
    task = source.held_out(1)[0]
    silent = [assistant("Nice.")] * len(task.private["question"])
    score, one = played(task, silent)
    assert (score.success, one.final["kept"]) == (False, 0)


@needs_package
def test_unknown_memory_backend_names_the_packages():
    with pytest.raises(RecipeError, match='no memory named "kw"; memories are kv'):
        create_memory("kw")
    if importlib.util.find_spec("faiss") is None:
        with pytest.raises(RecipeError, match="pip install overrides sentence-transformers faiss-cpu"):
            create_memory("vector")
