"""Adapter for generators of reasoning-gym: a question, one answer, and the score of the generator's verifier.

Note:
    A verifier is third-party code that works on model output. Nine of them run the answer as Python; others raise on
    unexpected text, never return from a tower of powers, give some reward for any words, or accept anything. Here a
    verifier runs in a child process that is killed after a timeout. Only a literal, or an expression of numbers,
    letters and named functions, is executed. The score of nonsense is subtracted. A verifier that is known to accept
    wrong answers is replaced by a comparison of this module.

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
from whetstone.environments.adapters.isolated_rng import IsolatedRandom
from whetstone.environments.adapters.run_in_subprocess import run_in_subprocess
from whetstone.environments.dependencies import check_requirements, require_package
from whetstone.environments.game_tasks import command_to_message
from whetstone.environments.protocol import GameObservation, Isolation
from whetstone.environments.text_actions import TOOL
from whetstone.errors import RecipeError, TaskError, did_you_mean
from whetstone.python_syntax import parse_expression
from whetstone.tasks.generated import Generated
from whetstone.tools.arithmetic_tools import evaluate_expression
from whetstone.trajectory import Task

_NEEDS = (require_package("reasoning_gym", "reasoning"),)
_SECONDS = 5.0
"""Timeout of a verifier in seconds; an answer that takes longer is wrong."""
_MAX_SEEDS = 20
"""Maximum number of seeds tried for a question."""
_NONSENSE = ("zzqx", " ", "I do not know.")
"""Texts whose highest score is subtracted from the score of an answer."""
_LITERALS = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
"""Verifiers that run an answer as Python."""
_EXPRESSIONS = (
    "countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration",
)  # fmt: skip
"""Verifiers that run an answer as an expression of SymPy."""
_RUNS = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\(\s*\w*answer")
"""Pattern of source code of a verifier that executes an answer."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_FUNCTIONS = frozenset(
    "sin cos tan sec csc cot asin acos atan sinh cosh tanh exp log ln sqrt pi Abs Rational".split()  # noqa: SIM905
)


class ReasoningGym:
    """Game of one question: the full message is the answer and ends the episode."""

    name = "reasoning_gym"
    needs = _NEEDS
    multiline = True
    isolation: Isolation = "process"

    def __init__(self) -> None:
        self._question: GeneratedQuestion | None = None
        self.score = 0.0

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Load the question of the task and return its text."""
        self._question = task_question(task)
        self.score = 0.0
        return GameObservation(str(self._question.entry["question"]))

    def act(self, command: str) -> GameObservation:
        """Score the answer and end the game.

        An answer that the verifier cannot parse has score 0 and counts as an invalid command.
        """
        assert self._question is not None
        score = score_answer(self._question, command)
        self.score = score or 0.0
        return GameObservation("", self.score, terminated=True, understood=score is not None)

    def verdict(self) -> Mapping[str, Any]:
        """Return the score of the answer from 0 to 1, see `score_answer`.

        A score of 1 is a success.
        """
        return {"success": self.score >= 1, "score": self.score}

    def close(self) -> None:
        """Do nothing; the game has no resources."""


class ReasoningGymTasks(Generated):
    """Task source: questions of reasoning-gym generators, sampled uniformly.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        datasets: Names of generators, such as `leg_counting`.
        options: Passed to the generators.

    Raises:
        RecipeError: If there is no such generator or option, if its verifier accepts nonsense, or if it executes
            answers in an unknown way.
    """

    name = "reasoning_gym"
    most = 1

    def __init__(self, *, datasets: list[str], seed: int = 0, options: dict[str, Any] | None = None) -> None:
        check_requirements("reasoning_gym", _NEEDS)
        from reasoning_gym.factory import DATASETS

        for name in datasets:
            if name not in DATASETS:
                raise RecipeError(f"reasoning_gym: no generator named {name}{did_you_mean(name, DATASETS)[:200]}")
        super().__init__(seed=seed)
        self.datasets, self.options = datasets, options or {}
        for name in datasets:
            _check_verifier(load_question(name, 0, json.dumps(self.options)))

    def make(self, draw: Random, level: int) -> Task:
        """Generate a task: the name of a generator, a seed and options; see `Generated`.

        Raises:
            RecipeError: If the generator fails on `_MAX_SEEDS` seeds.
        """
        name, failure = draw.choice(self.datasets), ""
        for _ in range(_MAX_SEEDS):  # a generator may fail on a seed
            private = {"dataset": name, "seed": draw.randrange(2**31), "options": self.options}
            task = Task("", "", private, {"kind": name})
            try:
                task_question(task)
            except RecipeError:
                raise
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                continue
            return task
        raise RecipeError(f"reasoning_gym: {name}: no question was generated from {_MAX_SEEDS} seeds: {failure[:200]}")

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the answer that the generator provides.

        Raises:
            TaskError: If it provides none, since several answers are correct and it only verifies.
        """
        question = task_question(task)
        if question.entry["answer"] is None:
            raise TaskError(f"reasoning_gym: {question.name} has no expert: the generator only verifies answers")
        answer = str(question.entry["answer"])
        return command_to_message(answer, tools) if any(tool.name == TOOL for tool in tools) else assistant(answer)


@dataclass(frozen=True, slots=True)
class GeneratedQuestion:
    """One question of reasoning-gym with its generator, which verifies answers."""

    name: str
    """Name of the generator."""
    dataset: Any
    """Generator of reasoning-gym, a dataset of one entry."""
    entry: Mapping[str, Any]
    """Entry of the dataset: `question`, `answer` and `metadata`."""


@functools.lru_cache(maxsize=4096)
def load_question(name: str, seed: int, options: str) -> GeneratedQuestion:
    """Generate the question of a seed; cached.

    Args:
        name: Name of the generator.
        seed: Seed of the generator.
        options: Options of the generator, as JSON.

    Raises:
        RecipeError: If the generator has no such options, or is `composite`.
    """
    import reasoning_gym

    if name == "composite":  # only it knows the generator of a question, and thus its verifier
        raise RecipeError("reasoning_gym: composite is not supported; list its generators in `datasets`")
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(options).items()}
    with IsolatedRandom(seed).in_place():  # some generators use the shared random generator
        try:
            dataset = reasoning_gym.create_dataset(name, seed=seed, size=1, **arguments)
        except (TypeError, AssertionError, ValueError) as error:
            raise RecipeError(f"reasoning_gym: {name}: {error}") from None
        _SORT.get(name, _keep_order)(dataset)
        return GeneratedQuestion(name, dataset, dataset[0])


def task_question(task: Task) -> GeneratedQuestion:
    """Return the question that a task's private data identify.

    They have the name of the generator, a seed and options.
    """
    return load_question(task.private["dataset"], task.private["seed"], json.dumps(task.private["options"]))


def score_answer(question: GeneratedQuestion, answer: str) -> float | None:
    """Return the score of an answer from 0 to 1, or None if it cannot be parsed.

    The score of nonsense is subtracted, and the rest scaled to 1. An answer on which the verifier raises or times out
    cannot be parsed. An answer that is not safe to execute is correct only if it equals the generator's answer
    literally.
    """
    if not is_safe_to_verify(question.name, answer):
        return float(answer == str(question.entry["answer"]))

    def judge() -> tuple[float | None, float]:
        score = verifier_score(question, answer)
        return score, nonsense_score(question) if score else 0.0

    score, free = run_in_subprocess(judge, seconds=_SECONDS) or (None, 0.0)
    if score is None:
        return None
    return max(0.0, (score - free) / (1 - free)) if free < 1 else 0.0


def nonsense_score(question: GeneratedQuestion) -> float:
    """Return the highest score that the verifier gives to a nonsense text."""
    return max(verifier_score(question, text) or 0.0 for text in _NONSENSE)


def verifier_score(question: GeneratedQuestion, answer: str) -> float | None:
    """Return the verifier's score of an answer from 0 to 1.

    None if the verifier raises. For some generators, a comparison of this module replaces the verifier's score.
    """
    replacement = _REPLACEMENTS.get(question.name)
    try:
        score = float(question.dataset.score_answer(answer, question.entry))
        score = score if replacement is None else replacement(score, answer, question.entry)
    except Exception:  # any exception of third-party code on odd text
        return None
    return max(0.0, min(1.0, score)) if math.isfinite(score) else 0.0


def is_safe_to_verify(name: str, answer: str) -> bool:
    """Return whether an answer can be passed to a verifier safely.

    If the verifier executes the answer, the answer must be a literal, or an expression that has only numbers, single
    letters and functions of mathematics.

    >>> is_safe_to_verify("n_queens", "[['_', 'Q']]"), is_safe_to_verify("n_queens", "entry['answer']")
    (True, False)
    >>> is_safe_to_verify("countdown", "(1+2)*x")
    True
    """
    if name in _EXPRESSIONS:
        plain = re.fullmatch(r"(?:[\w\s+\-*/^(),=]|\.(?=\d)|(?<=\d)\.)*", answer, re.ASCII) is not None
        return plain and all(len(word) == 1 or word in _FUNCTIONS for word in _WORD.findall(answer))
    if name not in _LITERALS:
        return True
    try:
        parse_expression(answer.strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return True  # not Python, so it cannot be executed
    try:
        ast.literal_eval(answer.strip())
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _check_verifier(question: GeneratedQuestion) -> None:
    """Refuse a verifier that is not safe for model output.

    Raises:
        RecipeError: If the verifier executes answers in an unknown way, or accepts nonsense.
    """
    known = question.name in (*_LITERALS, *_EXPRESSIONS)
    if not known and _RUNS.search(inspect.getsource(type(question.dataset).score_answer)):
        raise RecipeError(
            f"reasoning_gym: {question.name}: the verifier executes answers as code; use another generator"
        )
    if nonsense_score(question) >= 1:
        raise RecipeError(f"reasoning_gym: {question.name}: the verifier accepts any text; use another generator")


def _finite(score: float, answer: str, entry: Mapping[str, Any]) -> float:
    """Return the verifier's score, or 0 for an answer that contains NaN or infinity.

    The verifier would count its distance to the right answer as small.
    """
    return 0.0 if re.search(r"nan|inf", answer, re.IGNORECASE) else score


def _same_word(score: float, answer: str, entry: Mapping[str, Any]) -> float:
    """Return 1 if the answer equals the right one up to case and outer blanks, else 0."""
    return float(answer.strip().lower() == str(entry["answer"]).strip().lower())


def _near(score: float, answer: str, entry: Mapping[str, Any]) -> float:
    """Return the verifier's score if the probability is within 0.1 %, else 0.

    The verifier accepts 0 if the probability is small.
    """
    value, right = (float(Fraction(text.strip().replace(",", ""))) for text in (answer, str(entry["answer"])))
    return score if score < 1 or math.isclose(value, right, rel_tol=1e-3) else 0.0


def _require_numbers(score: float, answer: str, entry: Mapping[str, Any]) -> float:
    """Return the verifier's score if the given numbers are used and give 24, else 0.

    The verifier accepts any four numbers, and 24.9.
    """
    used = sorted(map(int, re.findall(r"\d+", answer)))
    return score if used == sorted(entry["metadata"]["numbers"]) and evaluate_expression(answer.strip()) == 24 else 0.0


class _SortedStrings(frozenset[str]):
    """Set of strings that is iterated in alphabetical order."""

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


def _keep_order(dataset: Any) -> None:
    pass


_SORT: dict[str, Callable[[Any], None]] = {
    "isomorphic_strings": _sort_letters,
    "knight_swap": _sort_pieces,
    "polynomial_multiplication": _sort_monomials,
    "ransom_note": _sort_letters,
    "word_ladder": _sort_neighbors,
}
"""Functions that fix the order of a generator that selects its question or answer from a set of strings, whose order
differs between processes; by name of the generator."""
_REPLACEMENTS: dict[str, Callable[[float, str, Mapping[str, Any]], float]] = {
    "coin_flip": _near,
    "complex_arithmetic": _finite,
    "game_of_life_halting": _same_word,
    "puzzle24": _require_numbers,
}
"""Functions that replace the score of a verifier that accepts wrong answers, by name of the generator."""
