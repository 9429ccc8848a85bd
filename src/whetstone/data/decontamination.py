"""Decontamination: finds training texts that share word n-grams with evaluation tasks.

Note:
    A task with fewer than thirteen words has no such n-gram; all its words are searched as one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from whetstone.trajectory import Task

WORDS = 13
"""Length of an n-gram in words, as in the reports of GPT-3 and later models."""
_WORD = re.compile(r"\w+")


def find_overlaps(
    texts: Iterable[tuple[str, str]], tasks: Sequence[Task], *, words: int = WORDS
) -> Iterator[tuple[str, str]]:
    """Yield (place, task id) for each text that contains an n-gram of a task's prompt, or a shorter prompt as a whole.

    Args:
        texts: (place, text).
        tasks: Evaluation tasks.
        words: Length of an n-gram.
    """
    runs: dict[tuple[str, ...], list[str]] = defaultdict(list)
    lengths = set()
    for task in tasks:
        prompt_words = _words(task.prompt)
        length = min(words, len(prompt_words))
        if length:
            lengths.add(length)
        for start in range(len(prompt_words) - length + 1) if length else ():
            runs[prompt_words[start : start + length]].append(task.id)
    for where, text in texts:
        text_words = _words(text)
        matches: dict[str, None] = {}
        for length in lengths:
            for start in range(len(text_words) - length + 1):
                for task_id in runs.get(text_words[start : start + length], ()):
                    matches[task_id] = None
        yield from ((where, task_id) for task_id in matches)


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.lower()))
