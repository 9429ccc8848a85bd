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
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

from whetstone.chat import Message, ToolSpec, assistant
from whetstone.environments.adapters.in_child import called_in_child
from whetstone.environments.adapters.own_random import OwnRandom
from whetstone.environments.commands import TOOL
from whetstone.environments.dependencies import check_needs, package
from whetstone.environments.game_tasks import said_as_command
from whetstone.environments.protocol import GameObservation, Isolation
from whetstone.errors import RecipeError, TaskError, did_you_mean
from whetstone.python_syntax import parse_expression
from whetstone.tasks.generated import Generated
from whetstone.tools.arithmetic import evaluate
from whetstone.trajectory import Task

_NEEDS = (package("reasoning_gym", "reasoning"),)
_SECONDS = 5.0
"""A verifier may take; one that takes longer has no right answer before it."""
_MOST_DRAWN = 20
"""Seeds tried for a question."""
_NONSENSE = ("zzqx", " ", "I do not know.")
_LITERALS = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
"""Verifiers that run an answer as Python."""
_EXPRESSIONS = (
    "countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration",
)  # fmt: skip
"""Verifiers that run an answer as an expression of SymPy's."""
_RUNS = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\(\s*\w*answer")
_WORD = re.compile(r"[A-Za-z_]\w*")
_FUNCTIONS = frozenset(
    "sin cos tan sec csc cot asin acos atan sinh cosh tanh exp log ln sqrt pi Abs Rational".split()  # noqa: SIM905
)


class ReasoningGym:
    """One question; the answer is all that is said, and ends the episode."""

    name = "reasoning_gym"
    needs = _NEEDS
    whole = True
    isolation: Isolation = "process"

    def __init__(self) -> None:
        self._question: Question | None = None
        self.score = 0.0

    def begin(self, task: Task, seed: int) -> GameObservation:
        """The question."""
        self._question = question_of(task)
        self.score = 0.0
        return GameObservation(str(self._question.entry["question"]))

    def act(self, command: str) -> GameObservation:
        """The answer; one its verifier cannot read is wrong."""
        assert self._question is not None
        score = scored(self._question, command)
        self.score = score or 0.0
        return GameObservation("", self.score, terminated=True, understood=score is not None)

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
            _check_verifier(question(name, 0, json.dumps(self.options)))

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        name, failure = draw.choice(self.datasets), ""
        for _ in range(_MOST_DRAWN):  # a generator may fail on a seed
            private = {"dataset": name, "seed": draw.randrange(2**31), "options": self.options}
            task = Task("", "", private, {"kind": name})
            try:
                question_of(task)
            except RecipeError:
                raise
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                continue
            return task
        raise RecipeError(f"reasoning_gym: {name} makes no question: {failure[:200]}")

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The generator's own answer.

        Raises:
            TaskError: It has none: several are right, and it only verifies.
        """
        question = question_of(task)
        if question.entry["answer"] is None:
            raise TaskError(f"reasoning_gym: {question.name} has no answer of its own to show")
        answer = str(question.entry["answer"])
        return said_as_command(answer, tools) if any(tool.name == TOOL for tool in tools) else assistant(answer)


@dataclass(frozen=True, slots=True)
class Question:
    """One question, and who judges its answers."""

    name: str
    """The generator's."""
    dataset: Any
    entry: Mapping[str, Any]


@functools.lru_cache(maxsize=4096)
def question(name: str, seed: int, options: str) -> Question:
    """The question of a seed.

    Args:
        options: Of the generator, as JSON.

    Raises:
        RecipeError: The generator takes no such options.
    """
    import reasoning_gym

    if name == "composite":  # what a question of it is of, and so who judges it, is known to it alone
        raise RecipeError("reasoning_gym: composite: name the generators it is put together of in `datasets`")
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(options).items()}
    with OwnRandom(seed).in_place():  # some generators use the shared random generator
        try:
            dataset = reasoning_gym.create_dataset(name, seed=seed, size=1, **given)
        except (TypeError, AssertionError, ValueError) as error:
            raise RecipeError(f"reasoning_gym: {name}: {error}") from None
        _SORT.get(name, _leave)(dataset)
        return Question(name, dataset, dataset[0])


def question_of(task: Task) -> Question:
    """The question of a task."""
    return question(task.private["dataset"], task.private["seed"], json.dumps(task.private["options"]))


def scored(question: Question, answer: str) -> float | None:
    """What an answer is worth, from 0 to 1, above what nonsense is; None where its verifier cannot read it.

    A verifier that raises or is late has not read it. What would be run is right only where it is the generator's own
    answer, letter by letter.
    """
    if not harmless(question.name, answer):
        return float(answer == str(question.entry["answer"]))

    def judged() -> tuple[float | None, float]:
        score = theirs(question, answer)
        return score, free_of(question) if score else 0.0

    score, free = called_in_child(judged, seconds=_SECONDS) or (None, 0.0)
    if score is None:
        return None
    return max(0.0, (score - free) / (1 - free)) if free < 1 else 0.0


def free_of(question: Question) -> float:
    """What nonsense is paid at most."""
    return max(theirs(question, said) or 0.0 for said in _NONSENSE)


def theirs(question: Question, answer: str) -> float | None:
    """The verifier's own score, or ours where its own is known to be wrong; None where it raises."""
    ours = _OURS.get(question.name)
    try:
        score = float(question.dataset.score_answer(answer, question.entry))
        score = score if ours is None else ours(score, answer, question.entry)
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
        parse_expression(answer.strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return True  # it is no Python, so it cannot be run
    try:
        ast.literal_eval(answer.strip())
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _check_verifier(question: Question) -> None:
    """Refuse a verifier that cannot be trusted with what a model says."""
    known = question.name in (*_LITERALS, *_EXPRESSIONS)
    if not known and _RUNS.search(inspect.getsource(type(question.dataset).score_answer)):
        raise RecipeError(f"reasoning_gym: {question.name}: its verifier runs what is said as code")
    if free_of(question) >= 1:
        raise RecipeError(f"reasoning_gym: {question.name}: its verifier takes any words for the answer")


def _finite(score: float, answer: str, entry: Mapping[str, Any]) -> float:
    """No distance to what is no number is a small one."""
    return 0.0 if re.search(r"nan|inf", answer, re.IGNORECASE) else score


def _same_word(score: float, answer: str, entry: Mapping[str, Any]) -> float:
    return float(answer.strip().lower() == str(entry["answer"]).strip().lower())


def _near(score: float, answer: str, entry: Mapping[str, Any]) -> float:
    """The verifier is content with 0 where the probability is small."""
    said, right = (float(Fraction(text.strip().replace(",", ""))) for text in (answer, str(entry["answer"])))
    return score if score < 1 or math.isclose(said, right, rel_tol=1e-3) else 0.0


def _of_its_numbers(score: float, answer: str, entry: Mapping[str, Any]) -> float:
    """The verifier is content with any four numbers, and with 24.9."""
    used = sorted(map(int, re.findall(r"\d+", answer)))
    return score if used == sorted(entry["metadata"]["numbers"]) and evaluate(answer.strip()) == 24 else 0.0


class _SortedStrings(frozenset[str]):
    """Strings that are iterated in the order of the alphabet."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__()))

    def __sub__(self, other: Set[Any]) -> _SortedStrings:
        return _SortedStrings(super().__sub__(other))


def _sort_letters(dataset: Any) -> None:
    dataset.letters = _SortedStrings(dataset.letters)


def _sort_monomials(dataset: Any) -> None:
    list_monomials = dataset._get_monomials
    dataset._get_monomials = lambda rng: sorted(list_monomials(rng), key=str)


def _sort_neighbors(dataset: Any) -> None:
    list_neighbors = dataset._get_neighbors
    dataset._get_neighbors = lambda word, words: sorted(list_neighbors(word, words))


def _sort_pieces(dataset: Any) -> None:
    sys.modules[type(dataset).__module__].__dict__["frozenset"] = _SortedStrings


def _leave(dataset: Any) -> None:
    pass


_SORT: dict[str, Callable[[Any], None]] = {
    "isomorphic_strings": _sort_letters,
    "knight_swap": _sort_pieces,
    "polynomial_multiplication": _sort_monomials,
    "ransom_note": _sort_letters,
    "word_ladder": _sort_neighbors,
}
"""Generators whose question or answer is chosen from a set of strings, whose order differs between processes."""
_OURS: dict[str, Callable[[float, str, Mapping[str, Any]], float]] = {
    "coin_flip": _near,
    "complex_arithmetic": _finite,
    "game_of_life_halting": _same_word,
    "puzzle24": _of_its_numbers,
}
