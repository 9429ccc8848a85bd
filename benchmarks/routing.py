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
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Score, Task, Trajectory

PRICES = {"small": 1.0, "middle": 4.0, "large": 16.0}
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
        """Asks one of those who know and may be asked, whatever it costs, and answers with what it hears."""
        heard = [message.text for message in conversation if message.role == "tool"]
        if heard:
            return assistant(heard[-1])
        may = [model for model in KNOWS[task.tags["kind"]] if model != task.private["unwanted"]]
        model = derive_random("asked", task.id).choice(may)
        return assistant("", ToolCall(f"ask_{model}", "{}"))

    def _task(self, *place: Any) -> Task:
        draw = derive_random("routing", *place)
        field = draw.choice(list(KNOWS))
        words = " ".join(draw.sample(WORDS[field], 2))
        number = draw.randrange(100, 1000)
        knows = KNOWS[field]
        unwanted = draw.choice(knows) if len(knows) > 1 and draw.random() < self.wishes else ""
        wish = f" not {unwanted}" if unwanted else ""
        prefer = {"outcome": 1.0, "cost": 0.5, **({f"ask_{unwanted}": -1.0} if unwanted else {})}
        private = {"answer": str(number), "unwanted": unwanted, "preferences": prefer}
        name = "/".join(map(str, place))
        return Task(f"routing/{name}", f"{words}{wish}", private, {"kind": field})


class Models:
    """The three models as tools, each at its price."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._draw = derive_random("unopened")

    def open(self, episode: Episode) -> None:
        """Hear the question."""
        self._task, self._draw = episode.task, derive_random("said", episode.seed)

    def charge(self, name: str) -> tuple[str, float]:
        """As of `Charges`: nothing is refused."""
        return "", PRICES.get(name.removeprefix("ask_"), 0.0)

    def ask_small(self) -> str:
        """Ask the small model."""
        return self._said("small")

    def ask_middle(self) -> str:
        """Ask the middle model."""
        return self._said("middle")

    def ask_large(self) -> str:
        """Ask the large model."""
        return self._said("large")

    def _said(self, model: str) -> str:
        assert self._task is not None
        knows = model in KNOWS[self._task.tags["kind"]]
        return str(self._task.private["answer"]) if knows else str(self._draw.randrange(100, 1000))


async def followed(trajectory: Trajectory, task: Task) -> Score:
    """1 where the model that was not wanted was not asked."""
    return Score(float(all(call.name != f"ask_{task.private['unwanted']}" for call in trajectory.calls)))
