"""Symbolic math equality of the final answer: `1/2`, `\\frac12` and `0.5` are equal; so are `x+1` and `1+x`.

The library Math-Verify compares them in the sandbox: a model's answer can keep a computer algebra system busy
forever, and only a process can be stopped.

Note: A comparison that timed out only shows that the answer is not a simple one. It counts as wrong and `undecided`,
since only the answer's length and form can cause it.
"""

from __future__ import annotations

import json
from importlib.util import find_spec

from whetstone.errors import InfrastructureError, RecipeError
from whetstone.optional_dependencies import install_command
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
    """Returns 1 if the final answer and `task.private["answer"]` are mathematically equal, else 0.

    The library Math-Verify compares them in the sandbox.

    Args:
        seconds: Timeout of a comparison, in seconds; afterwards the answer is wrong and `undecided`.
        sandbox: Sandbox, see the tool `python`.

    Raises:
        RecipeError: If Math-Verify is not installed.

    Source: Math-Verify, https://github.com/huggingface/Math-Verify.
    """

    def __init__(self, *, seconds: float = 5.0, sandbox: str = "auto") -> None:
        if find_spec("math_verify") is None:
            raise RecipeError(f"symbolic needs Math-Verify: {install_command('math')}")
        self.seconds, self.sandbox = seconds, sandbox

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Compare the final answer of a trajectory with the task's answer.

        Raises:
            ValueError: If the task's own answer cannot be parsed as mathematics.
            InfrastructureError: If Math-Verify cannot be imported in the sandbox.
        """
        answer, wanted = final_answer(trajectory), str(task.private["answer"])
        if answer is None or not answer.strip():
            return _score(False)
        if same_answer(answer, wanted):
            return _score(True)
        if len(answer) > _LONGEST:
            return _score(False, undecided=True)
        pool = shared_sandbox(self.sandbox, preload=("math_verify",))
        session: Session = pool.session()
        try:
            library = await session.python(_LIBRARY, wall_seconds=30.0)
            if library.ending is not Ending.OK:  # before the answer was read; a later error may quote it
                raise InfrastructureError(f"Math-Verify cannot be used in the sandbox: {library.error}")
            outcome = await session.python(_CODE % json.dumps([answer, wanted]), wall_seconds=self.seconds)
        finally:
            session.close()
        if outcome.ending is Ending.OK and outcome.value is not None:
            readable, same = json.loads(outcome.value[1:-1])
            if not readable:
                raise ValueError(f"the task's answer {wanted[:80]!r} cannot be parsed as mathematics")
            return _score(same)
        return _score(False, undecided=True)


def _score(right: bool, *, undecided: bool = False) -> Score:
    return Score(float(right), {"correct": float(right), "undecided": float(undecided)}, success=right)
