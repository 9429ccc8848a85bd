"""Questions some of which are known and the others stand in worked examples: how many examples does which need?

A syllable of the first half has a letter that the warm-up taught; one of the second half has a letter that is told in
front of the question, another in every task of the warm-up, so that it can only be read. The policy stays as it is:
what is chosen is how much it reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from choosing import LETTERS, SYLLABLES
from whetstone.chat import Message, ToolSpec, assistant
from whetstone.seeding import derive_random
from whetstone.trajectory import Score, Task, Trajectory

KNOWN, TOLD = SYLLABLES[:6], SYLLABLES[6:9]
LETTER_OF = {syllable: LETTERS[(7 * place) % 4] for place, syllable in enumerate(KNOWN + TOLD)}
EXAMPLES = ". ".join(f"{syllable} is {LETTER_OF[syllable]}" for syllable in TOLD) + "."


class Syllables:
    """A syllable's letter.

    Args:
        shown: Whether what is to be read stands in the task itself, drawn anew for each; for demonstrations.
    """

    def __init__(self, *, seed: int = 0, shown: bool = False) -> None:
        self.seed, self.shown = seed, shown

    def task(self, index: int) -> Task:
        """Training question `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """The same whatever the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The letter."""
        return assistant(task.private["answer"])

    def _task(self, split: str, seed: int, index: int) -> Task:
        draw = derive_random("syllable", split, seed, index)
        kind = draw.choice(("known", "told"))
        asked = draw.choice(KNOWN if kind == "known" else TOLD)
        answer, text = LETTER_OF[asked], f"{asked}?"
        if self.shown and (kind == "told" or draw.random() < 0.5):
            drawn = {syllable: draw.choice(LETTERS) for syllable in TOLD}
            told = ". ".join(f"{syllable} is {letter}" for syllable, letter in drawn.items()) + "."
            text, answer = f"{told}\n\n{text}", drawn.get(asked, answer)
        return Task(f"syllable/{split}/{seed}/{index}", text, {"answer": answer}, {"kind": kind})


async def said(trajectory: Trajectory, task: Task) -> Score:
    """1 for the letter; in parts how many words stood in front of it."""
    right = float(trajectory.final_text.strip() == task.private["answer"])
    words = sum(len(message.text.split()) for message in trajectory.opening)
    return Score(right, {"words read": float(words)}, success=bool(right))
