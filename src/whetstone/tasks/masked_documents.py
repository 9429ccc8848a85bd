"""Task source of masked documents: names and numbers of a passage are masked, and the agent searches for them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.seeding import derive_random, derive_seed
from whetstone.tasks.finite_source import ListedTasks
from whetstone.tools.corpus import read_passages
from whetstone.trajectory import Task

_SPAN = re.compile(r"(?<![.!?] )(?<!^)\b(?:[A-Z]\w+(?: [A-Z]\w+)*|\d[\d.,:/-]*\d|\d)", re.MULTILINE)
"""Capitalized words that do not start a sentence, and numbers or dates."""
_SEPARATOR = "; "


class Masked(ListedTasks):
    """Task source of masked spans in a folder of documents; the number of masks is the difficulty.

    Names and numbers of a passage are replaced by `[1]`, `[2]` …, everywhere in the passage. The answer has their texts
    in order, separated by `; `. Each passage gives one task per level; its tag `kind` is the number of masks, for a
    staged curriculum. Held-out tasks are of passages from which no training task is made. Use it with the tool `search`
    over the same folder and the reward `exact_match`; the expert searches for the passage.

    Args:
        corpus: Folder of documents or a file, as for the tool `search`.
        levels: Numbers of masks.
        words: Maximum number of words of a passage.
        held_out_fraction: Fraction of the passages that is held out.
        seed: Determines the order of training tasks.

    Raises:
        TaskError: If the corpus cannot be read, or fewer than two passages have enough names or numbers.
        OptionError: If a level is below 1, or the fraction is not between 0 and 1.

    Source: MaskSearch 2025, arXiv:2505.20285 (retrieval-augmented mask prediction); spans are found by rules.
    """

    def __init__(
        self,
        *,
        corpus: str,
        levels: Sequence[int] = (1, 2, 3),
        words: int = 60,
        held_out_fraction: float = 0.1,
        seed: int = 0,
    ) -> None:
        if not levels or min(levels) < 1:
            raise OptionError("levels", f"must be numbers of masks of 1 or more, got {list(levels)}")
        if not 0 < held_out_fraction < 1:
            raise OptionError("held_out_fraction", f"must be between 0 and 1, got {held_out_fraction:g}")
        texts = {passage.text: passage.id for passage in read_passages(Path(corpus), words=words)}
        by_passage = [
            tasks
            for text, name in texts.items()
            if (tasks := [task for level in sorted(levels) if (task := mask_passage(name, text, level)) is not None])
        ]
        if len(by_passage) < 2:
            problem = f"{len(by_passage)} passages have {min(levels)} or more names or numbers to mask"
            raise TaskError(f"{corpus}: {problem}; at least 2 are required: add documents or increase words")
        by_passage.sort(key=lambda tasks: derive_seed("held out", tasks[0].id))
        count = min(max(1, round(held_out_fraction * len(by_passage))), len(by_passage) - 1)
        held_out, training = by_passage[:count], by_passage[count:]
        super().__init__([t for tasks in training for t in tasks], [t for tasks in held_out for t in tasks], seed=seed)

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Search for the words of the passage, if there is a tool `search`, and return the answer."""
        can_search = any(tool.name == "search" for tool in tools)
        if can_search and not any(message.role == "tool" for message in conversation):
            query = re.sub(r"\[\d+\]", "", task.prompt.partition("\n")[2])[:200]
            return assistant("", ToolCall("search", json.dumps({"query": query}), "call_0"))
        return assistant(str(task.private["answer"]))


def mask_passage(name: str, text: str, count: int) -> Task | None:
    """Return the task of a passage with `count` masked spans; None if it has fewer different spans.

    Equal spans have one mask. A span that is part of another one is not masked.

    Args:
        name: Identifier of the passage, which also seeds the choice of spans.
        text: Passage.
        count: Number of masks.
    """
    spans = list(dict.fromkeys(_SPAN.findall(text)))
    spans = [span for span in spans if not any(span != other and _occurs(span, other) for other in spans)]
    if len(spans) < count:
        return None
    chosen = derive_random("masked", name, count).sample(spans, count)
    chosen.sort(key=text.index)
    masked = re.sub(r"\[(\d+)\]", r"(\1)", text)  # a footnote is not a mask
    for number, span in enumerate(chosen, 1):
        masked = re.sub(rf"(?<![\w\[]){re.escape(span)}(?![\w\]])", f"[{number}]", masked, flags=re.IGNORECASE)
    marks = ", ".join(f"[{number}]" for number in range(1, count + 1))
    order = f" in this order, separated by `{_SEPARATOR}`" if count > 1 else ""
    prompt = f"Which text was replaced by {marks}? Answer with the text only{order}.\n{masked}"
    return Task(f"{name}/{count}", prompt, {"answer": _SEPARATOR.join(chosen)}, {"kind": f"{count} masks"})


def _occurs(span: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(span)}(?!\w)", text, flags=re.IGNORECASE) is not None
