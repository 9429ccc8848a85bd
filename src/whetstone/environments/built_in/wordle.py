"""Wordle: a word of five letters in six guesses.

Feedback is one sign per letter: `=` right place, `+` elsewhere in the word, `-` not (or no more) in it.

Note:
    A letter that is guessed twice and occurs once is marked once, right places first. The word is fixed at the start;
    a belief over words, as in LMRL-Gym (2311.18232), is another game.

Ends: terminated when the word is found; truncated after six guesses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from random import Random
from typing import Any

from whetstone.environments.built_in.game_base import PlainGame
from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.protocol import GameObservation
from whetstone.trajectory import Task

WORDS = tuple((files(__package__) / "wordle_words.txt").read_text("utf-8").split())
"""Valid words of five letters."""


class Wordle(PlainGame):
    """Game to find a secret word of five letters.

    Args:
        max_guesses: Maximum number of guesses, including invalid words.
    """

    name = "wordle"
    instruction = (
        "Find a word of five letters. A command is a guess; each letter is answered with = (right place), "
        "+ (elsewhere) or - (not there)."
    )

    def __init__(self, *, max_guesses: int = 6) -> None:
        self.max_guesses = max_guesses
        self.secret = ""
        self.words: tuple[str, ...] = WORDS
        self.guesses: list[tuple[str, str]] = []
        self.used = 0

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start with the secret word and the word list of the task."""
        self.secret, self.guesses, self.used = task.private["word"], [], 0
        self.words = select_words(task.private["stride"])
        return GameObservation("guess")

    def act(self, command: str) -> GameObservation:
        """Execute a guess and return its letters with their marks."""
        guess = command.strip().lower()
        self.used += 1
        late = self.used >= self.max_guesses
        if guess not in self.words:
            return GameObservation(f"{guess or 'nothing'} is not a word here", 0.0, understood=False, truncated=late)
        answer = mark_guess(guess, self.secret)
        self.guesses.append((guess, answer))
        if guess == self.secret:
            return GameObservation("right", 1.0, terminated=True)
        return GameObservation(" ".join(map("".join, zip(guess, answer, strict=True))), 0.0, truncated=late)

    def verdict(self) -> Mapping[str, Any]:
        """Return whether the word was found, and the number of guesses.

        The score decreases by 0.1 per guess after the first.
        """
        is_found = bool(self.guesses) and self.guesses[-1][0] == self.secret
        score = 1 - 0.1 * (self.used - 1) if is_found else 0.0
        return {"success": is_found, "score": score, "guesses": self.used}

    def admissible(self) -> list[str]:
        """Return all words that are valid guesses at the task's level."""
        return list(self.words)

    def solve(self) -> str:
        """Return the word that splits the remaining candidates best."""
        left = [word for word in self.words if all(mark_guess(guess, word) == answer for guess, answer in self.guesses)]
        return best_guess(left or list(self.words))


class WordleTasks(GameTasks):
    """Task source of secret words.

    Level 1 has every sixteenth word, level 2 every fourth, level 3 all.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    name = "wordle"
    game = Wordle

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        stride = (16, 4, 1)[level - 1]
        words = select_words(stride)
        private = {"word": draw.choice(words), "stride": stride}
        return Task("", "", private, {"kind": f"{len(words)} words"})


def select_words(stride: int) -> tuple[str, ...]:
    """Return every `stride`-th word of the word list; 1 returns all words."""
    return WORDS[::stride]


def mark_guess(guess: str, secret: str) -> str:
    """Return one mark of `=+-` per letter of a guess.

    >>> mark_guess("allow", "llama")
    '+=+--'
    """
    left = Counter(s for g, s in zip(guess, secret, strict=True) if g != s)
    signs = []
    for g, s in zip(guess, secret, strict=True):
        if g == s:
            signs.append("=")
        elif left[g] > 0:
            left[g] -= 1
            signs.append("+")
        else:
            signs.append("-")
    return "".join(signs)


def best_guess(words: Sequence[str]) -> str:
    """Return the word that splits the others best, judged by single letters.

    If several are best, the last in alphabetical order.
    """
    often = Counter(letter for word in words for letter in set(word))
    places = Counter((k, letter) for word in words for k, letter in enumerate(word))
    half = len(words) / 2
    return max(
        words,
        key=lambda w: (
            sum(min(often[c], 2 * half - often[c]) for c in set(w)) + 0.5 * sum(places[k, c] for k, c in enumerate(w)),
            w,
        ),
    )
