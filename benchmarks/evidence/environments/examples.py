"""Questions that are either memorized or answered by worked examples, for choosing the number of examples per kind.

The warm-up teaches the letters of the first half of the syllables. The letters of the second half precede the question
and differ in every task of the warm-up, so that they can only be read from the prompt. The policy is not trained; only
the number of examples in the prompt is chosen.
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
    """Task source that asks for the letter of a syllable.

    Args:
        shown: Whether the prompt contains random letters for the second half; for demonstrations.
    """

    def __init__(self, *, seed: int = 0, shown: bool = False) -> None:
        self.seed, self.shown = seed, shown

    def task(self, index: int) -> Task:
        """Return training question `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """Return held-out questions, which do not depend on the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the letter."""
        return assistant(task.private["answer"])

    def _task(self, split: str, seed: int, index: int) -> Task:
        draw = derive_random("syllable", split, seed, index)
        kind = draw.choice(("known", "told"))
        syllable_asked = draw.choice(KNOWN if kind == "known" else TOLD)
        answer, text = LETTER_OF[syllable_asked], f"{syllable_asked}?"
        if self.shown and (kind == "told" or draw.random() < 0.5):
            letters = {syllable: draw.choice(LETTERS) for syllable in TOLD}
            statement = ". ".join(f"{syllable} is {letter}" for syllable, letter in letters.items()) + "."
            text, answer = f"{statement}\n\n{text}", letters.get(syllable_asked, answer)
        return Task(f"syllable/{split}/{seed}/{index}", text, {"answer": answer}, {"kind": kind})


async def said(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 for the right letter, with the number of words in the prompt as a part."""
    right = float(trajectory.final_text.strip() == task.private["answer"])
    words = sum(len(message.text.split()) for message in trajectory.opening)
    return Score(right, {"words read": float(words)}, success=bool(right))
