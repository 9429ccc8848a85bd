"""Three stub models with different prices and skills, and questions that one, two or all three can answer.

A question belongs to a field; the models that know the field can be learned from its words. The policy calls a model,
reads its reply, can call another one, and answers. A model that does not know returns a wrong number. A question can
end with a preference that excludes one model.
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
"""Field → models that know it."""
WORDS = {
    "plants": ("rose", "oak", "fern", "moss", "reed", "pine", "sage", "dill", "elm", "ivy"),
    "tools": ("saw", "drill", "lathe", "wrench", "file", "plane", "clamp", "hammer", "rasp", "awl"),
    "laws": ("tort", "lien", "writ", "plea", "deed", "trust", "bail", "oath", "claim", "brief"),
}


class Questions:
    """Questions of three fields; each contains words of two fields.

    Args:
        wishes: Probability that a knowing model is excluded, if another one remains.
    """

    def __init__(self, *, seed: int = 0, wishes: float = 0.0) -> None:
        self.seed, self.wishes = seed, wishes

    def task(self, index: int) -> Task:
        """Return training question `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """Return held-out questions, which do not depend on the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Call a random knowing model, regardless of costs and preferences, and answer with its reply."""
        replies = [message.text for message in conversation if message.role == "tool"]
        if replies:
            return assistant(replies[-1])
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
    """Return the answer of a question of two words."""
    return str(derive_random("answer", words).randrange(10, 100))


def small(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """Reply as the small model."""
    return _reply("small", conversation[-1].text, seed)


def middle(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """Reply as the middle model."""
    return _reply("middle", conversation[-1].text, seed)


def large(conversation: Sequence[Message], tools: Sequence[ToolSpec], seed: int) -> str:
    """Reply as the large model."""
    return _reply("large", conversation[-1].text, seed)


def _reply(model: str, question: str, seed: int) -> str:
    first, second, *_ = question.split()
    field = next(field for field, words in WORDS.items() if first in words)
    knows = model in KNOWS[field]
    return answer_to(f"{first} {second}") if knows else str(derive_random("said", seed).randrange(10, 100))


async def followed(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 if the excluded model was not called."""
    return Score(float(all(call.name != f"ask_{task.private['unwanted']}" for call in trajectory.calls)))
