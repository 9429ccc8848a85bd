"""Which code did an episode end with?"""

from __future__ import annotations

import re

from whetstone.rewards.answers.final_answer import final_answer
from whetstone.trajectory import Trajectory

_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def solution_of(trajectory: Trajectory) -> str | None:
    """The last fenced block of the final answer, or all of it; None where there is no answer."""
    answer = final_answer(trajectory)
    if answer is None:
        return None
    blocks = _FENCED.findall(answer)
    return str(blocks[-1]) if blocks else answer
