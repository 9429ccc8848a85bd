"""Masked spans of documents as search tasks."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paper_properties import exact
from paper_properties.episodes import make_episode, make_turn
from whetstone.analysis.exact import Figure
from whetstone.environments.tool_environment import ToolEnvironment
from whetstone.evaluation.environment_checks.play_episode import play_with_policy
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.tasks.masked_documents import Masked
from whetstone.tools.search import Search
from whetstone.trajectory import Task

_NAMES = ("Ada", "Bela", "Cato", "Dora", "Egon", "Fritz", "Gita", "Hugo")
_TOWNS = ("Lindau", "Soria", "Malmo", "Trento", "Vaasa", "Bergen", "Pula", "Cadiz")
"""Towns of the mayors; no part of a name is part of its town."""


def _write_documents(folder: str) -> None:
    for number, name in enumerate(_NAMES):
        town, other = _TOWNS[number], _TOWNS[(number + 1) % len(_TOWNS)]
        text = f"The mayor of the old town near the river {town} is {name} Meyer, elected in {1900 + number}. The "
        text += f"twin town is {other}, and its mayor wrote {10 + number} letters to {name} Meyer."
        (Path(folder) / f"{name}.txt").write_text(text, encoding="utf-8")


def _fill(task: Task, answers: Sequence[str]) -> str:
    """Return the passage of a task with these texts instead of its masks."""
    passage = task.prompt.partition("\n")[2]
    return re.sub(r"\[(\d+)\]", lambda mask: answers[int(mask[1]) - 1], passage)


def _success(task: Task, answer: str) -> bool:
    return bool(asyncio.run(exact_match(make_episode([make_turn(answer)]), task)).success)


@exact("masksearch", of=Masked, note="spans are found by rules; the trained gain is that of the bench")
def masked_passages_are_solved_by_search() -> list[Figure]:
    """For passages of eight documents with one to three masks: the answers restore the passage, occur nowhere in the
    prompt, and are as many as the tag has masks; no passage is on both sides of the split; a player that searches and
    reads the passage solves all, one that answers with a word of the prompt, or with two of its words in any order,
    none, and one that knows each name with probability 1/2 solves a fraction of 1/2, 1/4 and 1/8."""
    with tempfile.TemporaryDirectory() as folder:
        _write_documents(folder)
        source = Masked(corpus=folder, held_out_fraction=0.25)
        documents = {(Path(folder) / f"{name}.txt").read_text(encoding="utf-8") for name in _NAMES}
        search = Search(corpus=folder, index=f"{folder}/index")
        tasks = [*source.listed_tasks[0], *source.listed_tasks[1]]
        broken = leaked = copied = solved = 0
        known = {1: 0.0, 2: 0.0, 3: 0.0}
        for task in tasks:
            answers = str(task.private["answer"]).split("; ")
            broken += _fill(task, answers) not in documents or task.tags["kind"] != f"{len(answers)} masks"
            leaked += any(re.search(rf"\b{re.escape(answer)}\b", task.prompt) is not None for answer in answers)
            words = re.findall(r"\w+", task.prompt)
            copied += any(_success(task, word) for word in words)
            pairs = {one + gap + other for one in words for other in words for gap in (" ", "")}
            copied += len(answers) == 1 and answers[0] in pairs
            for subset in range(2 ** len(answers)):
                texts = [answer if subset >> k & 1 else "unknown" for k, answer in enumerate(answers)]
                known[len(answers)] += _success(task, "; ".join(texts)) / 2 ** len(answers) / len(_NAMES)
            solved += _search_and_answer(source, search, task)
        sides = [{_fill(t, str(t.private["answer"]).split("; ")) for t in side} for side in source.listed_tasks]
    return [
        Figure("tasks of eight passages with one, two and three masks", "=", 24, len(tasks)),
        Figure("tasks whose answers do not restore the passage, or of another kind", "=", 0, broken),
        Figure("tasks with an answer in the prompt", "=", 0, leaked),
        Figure("passages in training and held-out tasks", "=", 0, len(sides[0] & sides[1])),
        Figure("tasks that the expert solves by one search", "=", 24, solved),
        Figure("tasks that one or two words of the prompt solve", "=", 0, copied),
        *(Figure(f"success with {k} masks, each known with probability 1/2", "=", 0.5**k, known[k]) for k in known),
    ]


def _search_and_answer(source: Masked, search: Search, task: Task) -> bool:
    """Play the expert, and return whether its search shows the answers and its answer is right."""

    def act(conversation: Any, tools: Any, admissible: Any) -> Any:
        return source.demonstrate(task, conversation, tools)

    played = asyncio.run(play_with_policy(lambda: ToolEnvironment(tools=[search]), task, act, seed=0)).trajectory
    results = "\n".join(message.text for turn in played.turns for message in turn.observation)
    is_complete = all(answer in results for answer in str(task.private["answer"]).split("; "))
    return is_complete and bool(asyncio.run(exact_match(played, task)).success)
