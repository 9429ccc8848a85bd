"""Is the answer the same mathematics? `1/2`, `\\frac12` and `0.5` are; so are `x+1` and `1+x`.

Compared by the library Math-Verify, in the sandbox: what a model wrote can keep a computer algebra system busy for
ever, and nothing but a process can be stopped then.

Easy to get wrong: a comparison that was cut off says nothing of the answer but that it is not a plain one. It is a
wrong answer here, and counted as `undecided`, since only the answer's length and shape could bring it about.
"""

from __future__ import annotations

import json
from importlib.util import find_spec

from whetstone.errors import InfrastructureError, RecipeError
from whetstone.extras import install_command
from whetstone.rewards.answers.exact_match import same_answer
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.sandbox import Ending, Session, shared_sandbox
from whetstone.trajectory import Score, Task, Trajectory

_LONGEST = 2000
_LIBRARY = "import math_verify"
_CODE = """
import json, logging
logging.disable(logging.CRITICAL)
from math_verify import parse, verify
from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig
def same(said, wanted):
    how = [LatexExtractionConfig(), ExprExtractionConfig()]
    def read(text):
        marked = "$" in text or "boxed" in text
        found = parse(text if marked else "$" + text + "$", extraction_config=how, parsing_timeout=None)
        found = found or parse(text, extraction_config=how, parsing_timeout=None)
        return found if any(not isinstance(one, str) for one in found) else []
    gold, answer = read(wanted), read(said)
    return [bool(gold), bool(answer) and bool(verify(gold, answer, timeout_seconds=None))]
json.dumps(same(*json.loads(%r)))
"""


class Symbolic:
    """1 where the final answer and `task.private["answer"]` are the same mathematics, else 0.

    Args:
        seconds: How long a comparison may take.
        sandbox: As of the tool `python`.

    Raises:
        RecipeError: Math-Verify is not installed.

    Source: Math-Verify, https://github.com/huggingface/Math-Verify.
    """

    def __init__(self, *, seconds: float = 5.0, sandbox: str = "auto") -> None:
        if find_spec("math_verify") is None:
            raise RecipeError(f"symbolic needs Math-Verify: {install_command('math')}")
        self.seconds, self.sandbox = seconds, sandbox

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Whether they are the same.

        Raises:
            ValueError: The task's own answer is no mathematics.
        """
        said, wanted = final_answer(trajectory), str(task.private["answer"])
        if said is None or not said.strip():
            return _score(False)
        if same_answer(said, wanted):
            return _score(True)
        if len(said) > _LONGEST:
            return _score(False, undecided=True)
        pool = shared_sandbox(self.sandbox, preload=("math_verify",))
        session: Session = pool.session()
        try:
            there = await session.python(_LIBRARY, wall_seconds=30.0)
            if there.ending is not Ending.OK:  # before a word of the answer was read; an error behind it may quote it
                raise InfrastructureError(f"Math-Verify cannot be used in the sandbox: {there.error}")
            outcome = await session.python(_CODE % json.dumps([said, wanted]), wall_seconds=self.seconds)
        finally:
            session.close()
        if outcome.ending is Ending.OK and outcome.value is not None:
            readable, same = json.loads(outcome.value[1:-1])
            if not readable:
                raise ValueError(f"the task's answer {wanted[:80]!r} is no mathematics")
            return _score(same)
        return _score(False, undecided=True)


def _score(right: bool, *, undecided: bool = False) -> Score:
    return Score(float(right), {"correct": float(right), "undecided": float(undecided)}, success=right)
