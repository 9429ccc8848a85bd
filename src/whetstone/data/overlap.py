"""Does what is learned from hold what is evaluated? By runs of words they share, as others decontaminate.

Easy to get wrong: a task of a few words has no run of thirteen; it is looked for whole.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from whetstone.trajectory import Task

WORDS = 13
"""Words in a run, as in the reports of GPT-3 and those after it."""
_WORD = re.compile(r"\w+")


def overlaps(
    texts: Iterable[tuple[str, str]], tasks: Sequence[Task], *, words: int = WORDS
) -> Iterator[tuple[str, str]]:
    """(where, id of a task) for each text that holds a run of so many words of a task's prompt, or a shorter one whole.

    Args:
        texts: (where it stands, the text).
        tasks: Those that are evaluated.
    """
    runs: dict[tuple[str, ...], list[str]] = defaultdict(list)
    lengths = set()
    for task in tasks:
        said = _words(task.prompt)
        length = min(words, len(said))
        if length:
            lengths.add(length)
        for start in range(len(said) - length + 1) if length else ():
            runs[said[start : start + length]].append(task.id)
    for where, text in texts:
        said = _words(text)
        found: dict[str, None] = {}
        for length in lengths:
            for start in range(len(said) - length + 1):
                for task_id in runs.get(said[start : start + length], ()):
                    found[task_id] = None
        yield from ((where, task_id) for task_id in found)


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.lower()))
