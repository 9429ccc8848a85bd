"""Decontamination: finds training texts that share word n-grams with evaluation tasks.

Note:
    A task with fewer than thirteen words has no such n-gram; all its words are searched as one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from whetstone.trajectory import Task

WORDS = 13
"""Length of an n-gram in words, as in the reports of GPT-3 and later models."""
_WORD = re.compile(r"\w+")
_END = re.compile(r"[.,;:!?'\"]+(?=\s|$)")


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


def find_leaks(conversations: Sequence[Sequence[str]], tasks: Sequence[Task]) -> dict[int, str]:
    """Find conversations of training data that contain an evaluation task; see `build_leak_finder`.

    Args:
        conversations: [N] texts of the messages of each conversation.
        tasks: Evaluation tasks.

    Returns:
        Index of a conversation → id of the first task that it contains.
    """
    find_leak = build_leak_finder(tasks)
    task_ids = map(find_leak, conversations)
    return {index: task_id for index, task_id in enumerate(task_ids) if task_id is not None}


def build_leak_finder(tasks: Sequence[Task]) -> Callable[[Sequence[str]], str | None]:
    """Build a function that finds the evaluation task that a conversation contains.

    A conversation contains a task if a message equals its prompt, ignoring case, white space and final punctuation, or
    has thirteen of its words in a row. A prompt and words that several tasks have identify none of them, so the
    template of prompts does not count.

    Args:
        tasks: Evaluation tasks.

    Returns:
        Function of the texts of a conversation's messages: the id of the first task that they contain, or None.
    """
    prompts = Counter(normalize_prompt(task.prompt) for task in tasks)
    exact = {prompt: task.id for task in tasks if prompts[prompt := normalize_prompt(task.prompt)] == 1 and prompt}
    runs: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for task in tasks:
        words = _words(task.prompt)
        for start in range(len(words) - WORDS + 1):
            runs[words[start : start + WORDS]].add(task.id)

    def find_leak(texts: Sequence[str]) -> str | None:
        for text in texts:
            words = _words(text) if runs else ()
            matches = (runs.get(words[start : start + WORDS], set()) for start in range(len(words) - WORDS + 1))
            task_id = exact.get(normalize_prompt(text)) or next(
                (next(iter(ids)) for ids in matches if len(ids) == 1), None
            )
            if task_id is not None:
                return task_id
        return None

    return find_leak


def normalize_prompt(text: str) -> str:
    """Return a prompt in lower case, with single spaces and without punctuation at the ends of words."""
    return " ".join(_END.sub("", text).casefold().split())


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.lower()))
