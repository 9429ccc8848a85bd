"""Supervised data without evaluation tasks, and with long conversations sampled more often."""

from __future__ import annotations

from collections import Counter

from paper_properties import exact
from whetstone.analysis.exact import Figure
from whetstone.assembly.stage_datasets import repeat_long
from whetstone.chat import assistant, user
from whetstone.data.conversations import Conversation
from whetstone.data.decontamination import find_leaks
from whetstone.trajectory import Task

_TEMPLATE = "Read the question below with care, then think step by step and answer with one number only: "


def _ask(number: int) -> str:
    return f"{_TEMPLATE}how many apples are in {number} bags of {number + 1}?"


@exact("tulu-3", of=find_leaks)
def exactly_the_planted_evaluation_tasks_are_removed() -> list[Figure]:
    """20 of 200 conversations with one template contain an evaluation task: copied, with other case and punctuation,
    or quoted within a longer text. These are found, and no other one, although all share a template of 18 words."""
    unique = "A baker sells loaf {k} to every customer who asks for loaf {k} on day {k} of the month; how many?"
    tasks = [Task(f"t{k}", unique.format(k=k) if k % 2 else _ask(k)) for k in range(20)]
    planted = {
        index: (task.prompt, f"  {task.prompt.upper()}!", f"Earlier I was asked this: {task.prompt} Continue.")[
            index % 3
        ]
        if task.prompt.startswith("A baker") or index % 3 < 2
        else task.prompt
        for index, task in zip(range(0, 200, 10), tasks, strict=True)
    }
    texts = [[planted.get(index, _ask(1000 + index)), "7"] for index in range(200)]
    leaks = find_leaks(texts, tasks)
    right = [index for index, task in leaks.items() if index in planted and task == f"t{index // 10}"]
    rest = [text for index, text in enumerate(texts) if index not in leaks]
    return [
        Figure("planted conversations found, with their task, of 20", "=", 20, len(right)),
        Figure("other conversations found", "=", 0, len(leaks) - len(right)),
        Figure("found after removal", "=", 0, len(find_leaks(rest, tasks))),
    ]


@exact("dr-venus", of=repeat_long, note="the exponent is an addition")
def long_conversations_are_resampled_by_their_length() -> list[Figure]:
    """An epoch has a conversation of k times the mean number of turns k times, and every shorter one once; with
    exponent 0 all occur once."""
    turns = (2, 2, 2, 2, 12, 16)  # mean 6: 12 is twice, 16 is 2.67 times the mean
    rows = [Conversation(f"{n}", (user("?"), *(assistant("7") for _ in range(n)))) for n in turns]
    counts = {exponent: Counter(row.where for row in repeat_long(rows, exponent)) for exponent in (0, 1, 2)}
    return [
        Figure("repeats of 12 turns, exponent 1", "=", 2, counts[1]["12"]),
        Figure("repeats of 16 turns, exponent 1", "=", 3, counts[1]["16"]),
        Figure("repeats of 12 turns, exponent 2", "=", 4, counts[2]["12"]),
        Figure("repeats of four short rows, exponent 2", "=", 4, counts[2]["2"]),
        Figure("fraction of rows above the mean, exponent 1", "=", 5 / 9, (counts[1]["12"] + counts[1]["16"]) / 9),
        Figure("rows of an epoch, exponent 0", "=", 6, counts[0].total()),
    ]
