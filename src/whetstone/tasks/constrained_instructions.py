"""Task source of instructions with constraints that code checks, at four levels."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from whetstone.chat import Message, ToolSpec, assistant
from whetstone.tasks.constraint_rules import CATEGORIES, describe_constraint, find_conflict, write_example
from whetstone.tasks.generated import Generated
from whetstone.trajectory import Task

_WORDS = ("river", "stone", "light", "garden", "winter", "paper", "music", "window", "bread", "cloud")


class ConstrainedInstructions(Generated):
    """Task source of instructions with constraints: level k has k constraints of k different categories.

    Each instruction also names a word that the text contains, so that no single text satisfies all of them. Categories
    are content, format, language and length. Instructions whose constraints contradict each other are not generated.
    The reward `satisfied_constraints` checks the answer; the expert writes a text that satisfies all constraints.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    name = "constraints"
    most = 4

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        while True:
            chosen = sorted(draw.sample(list(CATEGORIES), level))
            subject = {"kind": "include", "word": draw.choice(_WORDS)}
            constraints = [subject, *(_sample_constraint(draw, draw.choice(CATEGORIES[name])) for name in chosen)]
            if find_conflict(constraints) is None:
                break
        lines = "\n".join(f"- {describe_constraint(each)}" for each in constraints[1:])
        return Task(
            "",
            f"Write a text with the word “{subject['word']}”.\n{lines}",
            {"constraints": constraints},
            {"kind": "+".join(chosen)},
        )

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return a text that satisfies all constraints."""
        return assistant(write_example(task.private["constraints"]))


def _sample_constraint(draw: Random, kind: str) -> dict[str, Any]:
    if kind == "case":
        return {"kind": kind, "value": draw.choice(("lower", "upper"))}
    if kind == "words":
        low = draw.randint(1, 8)
        return {"kind": kind, "low": low, "high": low + draw.randint(0, 3)}
    if kind in ("bullets", "sentences"):
        return {"kind": kind, "count": draw.randint(2, 4)}
    return {"kind": kind, "word": draw.choice(_WORDS)}
