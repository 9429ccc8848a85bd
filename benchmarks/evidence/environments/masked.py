"""Search tasks generated from documents: chains of relations with one, two or three masked names.

The documents are the family of `planner`; held-out questions paraphrase the relations.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner import NAMES, RELATIONS, Chains, look_up
from whetstone.chat import Message, ToolSpec
from whetstone.seeding import derive_random
from whetstone.trajectory import Task

MASK = "_"


class Masked(Chains):
    """Training tasks are masked spans, held-out ones the questions of `Chains`.

    A page "boss of ann: bob. mother of bob: eve" with one name masked asks for one relation, with two for one of what
    another leads to. The kind of a task is the number of its masks.

    Args:
        astray: Same as for `Chains`.
        masks: Maximum number of masked names.
    """

    def __init__(self, *, seed: int = 0, astray: float = 0.0, masks: int = 3) -> None:
        super().__init__(seed=seed, astray=astray)
        self.masks = masks

    def task(self, index: int) -> Task:
        """Return training span `index`."""
        draw = derive_random("masked", self.seed, index)
        count, name = draw.randint(1, self.masks), draw.choice(NAMES)
        relations = draw.sample(RELATIONS, count)
        answer = name
        for relation in relations:
            answer = look_up(relation, answer)
        text = " ".join(f"{MASK} {relation}" for relation in reversed(relations))
        private = {"answer": answer, "order": relations}
        return Task(f"masked/{self.seed}/{index}", f"{text} {name}", private, {"kind": str(count)})


def verifier(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """Return "stop" once the number of lookups equals the number of relations."""
    question, *done = conversation[-1].text.splitlines()
    return "stop" if len(done) >= sum(word in RELATIONS for word in question.split()) else "go on"
