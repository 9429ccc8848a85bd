"""Extraction of the code from the final answer."""

from __future__ import annotations

import re

from whetstone.rewards.answers.final_answer import final_answer
from whetstone.trajectory import Trajectory

_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def extract_code(trajectory: Trajectory) -> str | None:
    """Return the code in the final answer: the last fenced block, or all of it.

    Returns None if there is no answer.
    """
    answer = final_answer(trajectory)
    if answer is None:
        return None
    blocks = _FENCED.findall(answer)
    return str(blocks[-1]) if blocks else answer
