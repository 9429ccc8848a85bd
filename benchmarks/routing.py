"""Three stub models of different price and skill, and questions that one of them, two or all three know.

A question is of a field; who knows the field can be learned from its words. The policy asks a model, reads what it
says, may ask another, and answers. A model that does not know says a number all the same. A wish may stand behind the
question: one of the models is not to be asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.seeding import derive_random
from whetstone.trajectory import Score, Task, Trajectory

KNOWS = {
    "plants": ("small", "middle", "large"),
    "tools": ("middle", "large"),
    "laws": ("large",),
}
"""By field, the models that know it."""
WORDS = {
    "plants": ("rose", "oak", "fern", "moss", "reed", "pine", "sage", "dill", "elm", "ivy"),
    "tools": ("saw", "drill", "lathe", "wrench", "file", "plane", "clamp", "hammer", "rasp", "awl"),
    "laws": ("tort", "lien", "writ", "plea", "deed", "trust", "bail", "oath", "claim", "brief"),
}


class Questions:
    """Questions of three fields, the words of two of them in each.

    Args:
        wishes: How often a model that knows is not to be asked, where another is left.
    """

    def __init__(self, *, seed: int = 0, wishes: float = 0.0) -> None:
        self.seed, self.wishes = seed, wishes

    def task(self, index: int) -> Task:
        """Training question `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """The same whatever the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Asks one of those who know, whatever it costs and whoever is not wanted, and answers with what it hears."""
        heard = [message.text for message in conversation if message.role == "tool"]
        if heard:
            return assistant(heard[-1])
        model = derive_random("asked", task.id).choice(KNOWS[task.tags["kind"]])
        return assistant("", ToolCall(f"ask_{model}", "{}"))

    def _task(self, *place: Any) -> Task:
        draw = derive_random("routing", *place)
        field = draw.choice(list(KNOWS))
        words = " ".join(draw.sample(WORDS[field], 2))
        knows = KNOWS[field]
        unwanted = draw.choice(knows) if len(knows) > 1 and draw.random() < self.wishes else ""
        wish = f" not {unwanted}" if unwanted else ""
        prefer = {"outcome": 1.0, "cost": 0.5, **({f"ask_{unwanted}": -1.0} if unwanted else {})}
        private = {"answer": answer_to(words), "unwanted": unwanted, "preferences": prefer}
        name = "/".join(map(str, place))
        return Task(f"routing/{name}", f"{words}{wish}", private, {"kind": field})


def answer_to(words: str) -> str:
    """The number that answers a question of two words."""
    return str(derive_random("answer", words).randrange(10, 100))


def small(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """The small model."""
    return _said("small", conversation[-1].text, seed)


def middle(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """The middle model."""
    return _said("middle", conversation[-1].text, seed)


def large(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """The large model."""
    return _said("large", conversation[-1].text, seed)


def _said(model: str, question: str, seed: int) -> str:
    first, second, *_ = question.split()
    field = next(field for field, words in WORDS.items() if first in words)
    knows = model in KNOWS[field]
    return answer_to(f"{first} {second}") if knows else str(derive_random("said", seed).randrange(10, 100))


async def followed(trajectory: Trajectory, task: Task) -> Score:
    """1 where the model that was not wanted was not asked."""
    return Score(float(all(call.name != f"ask_{task.private['unwanted']}" for call in trajectory.calls)))
