"""Catalogs of many tools: search by words and vectors, example requests, query expansion, and retrieval metrics."""

import asyncio
import json

import numpy as np
import pytest

from support.tool_episodes import played
from whetstone.environments import ToolEnvironment
from whetstone.errors import RecipeError, TaskError
from whetstone.plugins import OptionError
from whetstone.tasks.tool_requests import ToolRequests
from whetstone.tools import ToolCatalog, Toolset
from whetstone.tools.corpus_index import fuse_rankings, in_memory
from whetstone.tools.generated_tools import OBJECTS, VERBS, generate_tools
from whetstone.tools.tool_retrieval import recall_at_k, split_clauses, sufficiency_at_k
from whetstone.trajectory import Task


def letters(texts):
    """Return vectors of letter counts."""
    return np.asarray([[text.lower().count(chr(97 + i)) + 1e-3 for i in range(26)] for text in texts], dtype=np.float32)


async def more_queries(query):
    return ["cancel invoice", "print contract"]


def number(query):
    return [3]


LETTERS, MORE = f"{__name__}:letters", f"{__name__}:more_queries"


def find_names(query, **options):
    answer = played(Toolset([ToolCatalog(generated=500, **options)]), ("find_tools", {"query": query}))[0]
    if not answer.text.startswith("{"):
        return answer.text
    return [json.loads(line)["name"] for line in answer.text.splitlines()]


def test_metrics_worked_numbers():
    names = ["a", "b", "c", "d"]
    assert [recall_at_k(names, ["b", "d"], k) for k in (1, 2, 3, 4)] == [0, 0.5, 0.5, 1]
    assert [sufficiency_at_k(names, ["b", "d"], k) for k in (1, 2, 3, 4)] == [0, 0, 0, 1]
    assert recall_at_k(names, [], 1) == 1
    assert recall_at_k(names, ["a", "a", "x"], 4) == 0.5


def test_reciprocal_rank_fusion_worked_numbers():
    """Ranks (1, 2) and (2, 1) tie; a passage at rank 1 of one list of two has 1/61."""
    index = in_memory([("x", "red red"), ("y", "blue"), ("z", "red blue")])
    red, blue = index.by_words("red", 3), index.by_words("blue", 3)
    assert [hit.passage.id for hit in red] == ["x", "z"]
    assert [hit.passage.id for hit in blue] == ["y", "z"]
    fused = fuse_rankings([red, blue], 3)
    assert [(hit.passage.id, hit.score) for hit in fused] == [("z", 2 / 62), ("x", 1 / 61), ("y", 1 / 61)]


def test_catalog_has_500_tools_whose_synonyms_no_description_contains():
    tools = generate_tools(500)
    assert len({spec.name for spec, _ in tools}) == len(VERBS) * len(OBJECTS) == 500
    texts = " ".join(f"{spec.name.replace('_', ' ')} {spec.description}".lower() for spec, _ in tools).split()
    assert not {word for words in (*VERBS.values(), *OBJECTS.values()) for word in words.split()} & set(texts) - {"a"}
    for count in (0, -1, 501):
        with pytest.raises(OptionError, match="generated: must be from 1 to 500"):
            generate_tools(count)


def test_example_requests_find_a_tool_by_synonyms():
    assert find_names("call off the bill", example_requests=False) == "no tool found"
    assert find_names("call off the bill", results_per_search=1) == ["cancel_invoice"]


def test_words_vectors_and_both():
    by_letters = find_names("cancel invoice", mode="vectors", embedding=LETTERS)
    assert by_letters != find_names("cancel invoice", mode="words", embedding=LETTERS)
    assert "cancel_invoice" in find_names("cancel invoice", embedding=LETTERS)
    with pytest.raises(RecipeError, match="catalog: mode vectors requires an `embedding`"):
        ToolCatalog(generated=5, mode="vectors")


def test_query_expansion_searches_each_clause():
    request = "Please cancel the invoice 3, and print the contract 4."
    assert split_clauses(request) == ["Please cancel the invoice 3", "print the contract 4"]
    assert split_clauses("cancel the invoice") == []
    expanded = find_names(request, expansion="clauses", results_per_search=2)
    assert set(expanded) == {"cancel_invoice", "print_contract"}
    assert set(find_names("both, please", expansion=MORE, results_per_search=2)) == {"cancel_invoice", "print_contract"}
    assert "expansion: must return a list of texts" in find_names("x", expansion=f"{__name__}:number")
    with pytest.raises(RecipeError, match="clauses"):
        ToolCatalog(generated=5, expansion="clause")


def play_expert(task, **options):
    """Return the verdict of the expert's episode."""

    async def episode():
        environment = ToolEnvironment(tools=[ToolCatalog(generated=500, **options)])
        observation = await environment.reset(task, seed=0)
        conversation = list(observation.messages)
        for _ in range(9):
            action = ToolRequests().demonstrate(task, conversation, ())
            result = await environment.step(action)
            conversation += [action, *result.observation.messages]
            if result.terminated:
                break
        verdict = await environment.verdict()
        await environment.close()
        return verdict

    return asyncio.run(episode())


def test_expert_finds_and_calls_the_needed_tools():
    for task in ToolRequests(levels=[1, 2, 3]).held_out(6):
        verdict = play_expert(task)
        assert verdict == {"success": True, "score": 1, "recall_at_k": 1, "sufficiency_at_k": 1, "called": 1}


def test_verdict_counts_found_and_called_tools():
    """Two of three needed tools are found, and one is called."""
    task = Task("t", "?", {"tools": ["cancel_invoice", "print_contract", "lock_device"]})
    catalog = ToolCatalog(generated=500, results_per_search=1)
    played(
        Toolset([catalog]),
        ("find_tools", {"query": "cancel invoice"}),
        ("find_tools", {"query": "print contract"}),
        ("print_contract", {"number": 3}),
        task=task,
    )
    verdict = {name: pytest.approx(value) for name, value in catalog.verdict().items()}
    assert verdict == {"success": False, "score": 2 / 3, "recall_at_k": 2 / 3, "sufficiency_at_k": 0, "called": 1 / 3}


def test_call_of_an_invisible_tool_is_not_counted():
    catalog = ToolCatalog(generated=500)
    played(Toolset([catalog]), ("cancel_invoice", {"number": 3}), task=Task("t", "?", {"tools": ["cancel_invoice"]}))
    assert catalog.verdict()["called"] == 0


def test_task_without_needed_tools_has_no_verdict():
    catalog = ToolCatalog(generated=5)
    played(Toolset([catalog]), ("find_tools", {"query": "invoice"}))
    assert catalog.verdict() == {}
    with pytest.raises(TaskError, match="task t: needs the tool fly, which is not in the catalog"):
        played(Toolset([catalog]), task=Task("t", "?", {"tools": ["fly"]}))


def test_ten_thousand_tools_with_equal_names_are_one_line(tmp_path):
    file = tmp_path / "tools.jsonl"
    file.write_text('{"name": "lookup", "description": "Look up."}\n' * 10_000)
    with pytest.raises(TaskError) as error:
        ToolCatalog(file=str(file))
    assert str(error.value) == f'{file}:2: a second tool is named "lookup"; rename one of them'
    file.write_text('{"name": "lookup", "requests": "one"}\n')
    with pytest.raises(TaskError, match=r"tools.jsonl:1: requests: must be a list of texts, got one"):
        ToolCatalog(file=str(file))
    file.write_text('{"name": "cancel_invoice"}\n')
    with pytest.raises(RecipeError, match='catalog: two tools are named "cancel_invoice"; rename one of them'):
        ToolCatalog(file=str(file), generated=500)


def test_example_requests_of_a_file_are_searched(tmp_path):
    file = tmp_path / "tools.jsonl"
    rows = [{"name": "a_one", "requests": ["warm up my dinner"]}, {"name": "b_two", "requests": ["feed the cat"]}]
    file.write_text("\n".join(map(json.dumps, rows)))
    catalog = ToolCatalog(file=str(file))
    assert catalog.finder.search("cat", 2) == ["b_two"]
    assert ToolCatalog(file=str(file), example_requests=False).finder.search("cat", 2) == []
