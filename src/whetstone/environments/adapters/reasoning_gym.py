"""The generators of reasoning-gym: a question, one answer, a verifier of their own.

Easy to get wrong: a verifier is foreign code that works on what a model said. Nine of them run the answer as Python;
others raise on what they do not expect, never come back from a tower of powers, pay a little for any words, or take
anything for right. Here a verifier works in a child that is killed when it is late; only a literal, or an expression of
numbers, letters and named functions, is run; what nonsense is paid is taken off; and where a verifier is known to take
what is wrong, the comparison is ours.

Source: reasoning-gym, arXiv:2505.24760.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import Any

from whetstone.chat import Message, ToolSpec, assistant
from whetstone.environments.adapters.in_child import called_in_child
from whetstone.environments.commands import TOOL
from whetstone.environments.game_tasks import said_as_command
from whetstone.environments.needs import check_needs, package
from whetstone.environments.protocol import Isolation, Shown
from whetstone.errors import RecipeError, TaskError, did_you_mean
from whetstone.tasks.generated import Generated
from whetstone.trajectory import Task

_NEEDS = (package("reasoning_gym", "reasoning"),)
_SECONDS = 5.0
"""A verifier may take; one that takes longer has no right answer before it."""
_NONSENSE = ("zzqx", " ")
_LITERALS = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
"""Verifiers that run an answer as Python."""
_EXPRESSIONS = (
    "countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration",
)  # fmt: skip
"""Verifiers that run an answer as an expression of SymPy's."""
_RUNS = re.compile(r"(?<![\w.])(?:eval|exec|(?:sympy|sp)\.parse_expr|sympify)\(\s*\w*answer")
_WORD = re.compile(r"[A-Za-z_]\w*")
_FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "sec",
        "csc",
        "cot",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "exp",
        "log",
        "ln",
        "sqrt",
        "pi",
        "Abs",
        "Rational",
    ]
)


class ReasoningGym:
    """One question; the answer is all that is said, and ends the episode."""

    name = "reasoning_gym"
    needs = _NEEDS
    whole = True
    isolation: Isolation = "process"

    def __init__(self) -> None:
        self._entry: Mapping[str, Any] = {}
        self._dataset: Any = None
        self.score = 0.0

    def begin(self, task: Task, seed: int) -> Shown:
        """The question."""
        private = task.private
        self._dataset, self._entry = entry_of(private["dataset"], private["seed"], _frozen(private["options"]))
        self.score = 0.0
        return Shown(str(self._entry["question"]))

    def act(self, command: str) -> Shown:
        """The answer; one its verifier cannot read is wrong."""
        score = scored(self._dataset, self._entry, command)
        self.score = score or 0.0
        return Shown("", self.score, terminated=True, understood=score is not None)

    def verdict(self) -> Mapping[str, Any]:
        """The verifier's score, above what it gives for nonsense; it is a success at 1."""
        return {"success": self.score >= 1, "score": self.score}

    def close(self) -> None:
        """Nothing is held."""


class ReasoningGymTasks(Generated):
    """Questions of one generator or several, drawn evenly.

    Args:
        seed: As of `Generated`.
        datasets: Names of generators, such as `leg_counting`.
        options: Passed to them.

    Raises:
        RecipeError: There is no such generator, it takes no such option, its verifier takes nonsense for an answer, or
            runs answers in a way that is not known here.
    """

    name = "reasoning_gym"
    most = 1

    def __init__(self, *, datasets: list[str], seed: int = 0, options: dict[str, Any] | None = None) -> None:
        check_needs("reasoning_gym", _NEEDS)
        from reasoning_gym.factory import DATASETS

        for name in datasets:
            if name not in DATASETS:
                raise RecipeError(f"reasoning_gym: no generator {name}{did_you_mean(name, DATASETS)[:200]}")
        super().__init__(seed=seed)
        self.datasets, self.options = datasets, options or {}
        for name in datasets:
            dataset, entry = entry_of(name, 0, _frozen(self.options))
            known = name in (*_LITERALS, *_EXPRESSIONS)
            if not known and _RUNS.search(inspect.getsource(type(dataset).score_answer)):
                raise RecipeError(f"reasoning_gym: {name}: its verifier runs what is said as code")
            if any((theirs(dataset, entry, said) or 0.0) >= 1 for said in _NONSENSE):
                raise RecipeError(f"reasoning_gym: {name}: its verifier takes any words for the answer")

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        name = draw.choice(self.datasets)
        private = {"dataset": name, "seed": draw.randrange(2**31), "options": self.options}
        return Task("", "", private, {"kind": name})

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The generator's own answer.

        Raises:
            TaskError: It has none: several are right, and it only verifies.
        """
        private = task.private
        _, entry = entry_of(private["dataset"], private["seed"], _frozen(private["options"]))
        if entry["answer"] is None:
            raise TaskError(f"reasoning_gym: {private['dataset']} has no answer of its own to show")
        answer = str(entry["answer"])
        return said_as_command(answer, tools) if any(tool.name == TOOL for tool in tools) else assistant(answer)


def scored(dataset: Any, entry: Mapping[str, Any], answer: str) -> float | None:
    """What an answer is worth, from 0 to 1, above what nonsense is; None where its verifier cannot read it.

    A verifier that raises, is late, or would have to run what is no plain value, has not read it.
    """
    if not harmless(_name_of(entry), answer):
        return None

    def judged() -> list[float | None]:
        return [theirs(dataset, entry, said) for said in (answer, *_NONSENSE)]

    found, *free = called_in_child(judged, seconds=_SECONDS) or [None]
    if found is None:
        return None
    least = max((score for score in free if score is not None), default=0.0)
    return max(0.0, (found - least) / (1 - least)) if least < 1 else 0.0


def theirs(dataset: Any, entry: Mapping[str, Any], answer: str) -> float | None:
    """The verifier's own score, or ours where its own is known to be wrong; None where it raises."""
    ours = _OURS.get(_name_of(entry))
    try:
        score = float(dataset.score_answer(answer, entry))
        score = score if ours is None else ours(score, answer, entry)
    except Exception:  # whatever foreign code makes of odd words
        return None
    return max(0.0, min(1.0, score)) if math.isfinite(score) else 0.0


def harmless(name: str, answer: str) -> bool:
    """Whether a verifier may be given an answer: where it would run it, only a literal, or an expression of numbers,
    single letters and functions of mathematics.

    >>> harmless("n_queens", "[['_', 'Q']]"), harmless("n_queens", "entry['answer']"), harmless("countdown", "(1+2)*x")
    (True, False, True)
    """
    if name in _EXPRESSIONS:
        plain = re.fullmatch(r"(?:[\w\s+\-*/^(),=]|\.(?=\d)|(?<=\d)\.)*", answer, re.ASCII) is not None
        return plain and all(len(word) == 1 or word in _FUNCTIONS for word in _WORD.findall(answer))
    if name not in _LITERALS:
        return True
    try:
        ast.parse(answer.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return True  # it is no Python, so it cannot be run
    try:
        ast.literal_eval(answer.strip())
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _name_of(entry: Mapping[str, Any]) -> str:
    """The generator an entry is of; of one of several put together, its own."""
    return str((entry.get("metadata") or {}).get("source_dataset", ""))


def _finite(score: float, answer: str, entry: Mapping[str, Any]) -> float:
    """A distance to a number that is none is no small one."""
    return 0.0 if re.search(r"nan|inf", answer, re.IGNORECASE) else score


def _same_word(score: float, answer: str, entry: Mapping[str, Any]) -> float:
    return float(answer.strip().lower() == str(entry["answer"]).strip().lower())


def _near(score: float, answer: str, entry: Mapping[str, Any]) -> float:
    """A tenth of a thousandth is no tolerance where the answer is smaller."""
    said, wanted = (float(Fraction(text.strip().replace(",", ""))) for text in (answer, str(entry["answer"])))
    return score if score < 1 or math.isclose(said, wanted, rel_tol=1e-3) else 0.0


_OURS: dict[str, Callable[[float, str, Mapping[str, Any]], float]] = {
    "coin_flip": _near,
    "complex_arithmetic": _finite,
    "game_of_life_halting": _same_word,
}


@functools.lru_cache(maxsize=4096)
def entry_of(name: str, seed: int, options: tuple[tuple[str, Any], ...]) -> tuple[Any, Mapping[str, Any]]:
    """(a dataset of one question, the question)"""
    import reasoning_gym

    try:
        dataset = reasoning_gym.create_dataset(name, seed=seed, size=1, **dict(options))
    except (TypeError, AssertionError, ValueError) as error:
        raise RecipeError(f"reasoning_gym: {name}: {error}") from None
    return dataset, dataset[0]


def _frozen(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((key, tuple(v) if isinstance(v, list) else v) for key, v in options.items()))
