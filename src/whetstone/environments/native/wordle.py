"""Wordle: a word of five letters in six guesses.

Feedback is one sign a letter: `=` right place, `+` elsewhere in the word, `-` not (any more) in it.

Easy to get wrong: a letter guessed twice and in the word once is marked once, right places first. The word is fixed at
the beginning; a belief over words, as in LMRL-Gym (2311.18232), is another game.

Ends: terminated when the word is found; truncated after six guesses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.native.plain_game import PlainGame
from whetstone.environments.protocol import GameObservation
from whetstone.trajectory import Task

_LISTED = """
about above actor acute admit adult after again agent agree ahead alarm album alert alike alive allow alone
along amber angle angry apart apple apply arena argue arise aside asset avoid award aware bacon badge baker
basic basin beach beard beast began begin being below bench birth black blade blame blank blast bleed blend
bless blind block blood bloom board boost booth bound brain brake brand brave bread break breed brick bride
brief bring broad brook broom brown brush build built bunch buyer cabin cable camel candy canoe cargo carry
catch cause chain chair chalk charm chart chase cheap check cheek cheer chess chest chief child chill choir
civil claim class clean clear clerk cliff climb cloak clock close cloth cloud coach coast color couch cough
count court cover craft crane crash cream creek crime crisp cross crowd crown crude crush curve cycle daily
dairy dance depth diary dough draft drain drama dream dress drift drill drink drive dwarf eager eagle early
earth elbow elder empty enemy enjoy enter equal error event every exact exist extra faint faith false fancy
fault feast fence ferry fetch fever field fiery fifth fight final flame flash fleet flesh float flock flood
floor flour fluid focus force forge forth frame fresh front frost fruit funny ghost giant glass globe glory
glove grace grade grain grand grape graph grass grave great green greet grief grill group grove guard guess
guest guide habit happy harsh haste heart heavy hedge honey honor horse hotel house human humor ideal image
index inner input ivory jewel joint judge juice knife knock known label labor large laser later laugh layer
learn lemon level lever light limit linen liver local logic loose lucky lunch magic major maple march marsh
match mayor meant medal mercy merge merit metal minor mixed model money month moral motor mount mouse mouth
movie music naval nerve never night noble noise north novel nurse ocean offer onion order organ other ought
outer paint panel paper party pasta patch pause peace pearl phase phone photo piano piece pilot pitch place
plain plane plant plate point pound power press price pride prime print prize proof proud pupil queen quick
quiet quilt quite radio raise ranch range rapid reach ready realm rebel reply right rider ridge rifle rival
river robin rough round route royal rural salad sauce scale scene scent scope score scout sense serve seven
shade shake shape share sharp sheep sheet shelf shell shift shine shirt shock shore short shout sight silly
since skill skirt sleep slice slide slope small smart smell smile smoke snake solid solve sorry sound south
space spare spark speak spear speed spell spend spice spine split sport spray squad stage stair stake stamp
stand stare start state steam steel steep stick still stock stone store storm story stove strap straw strip
study stuff style sugar sunny swamp swear sweet swift swing sword table taste teach thank theft their thick
thief thing think third thorn throw thumb tiger tight title toast today topic torch total touch tough towel
tower trace track trade trail train treat trend trial tribe trick troop truck trunk trust truth twice twist
uncle under union unite upper urban usage usual valid value vapor video visit vital vivid voice voter wagon
waste watch water weary wheat wheel where which white whole widow woman world worry worse worst worth wound
wrist wrong yacht yield young youth
"""
WORDS = tuple(_LISTED.split())


class Wordle(PlainGame):
    """One word.

    Args:
        max_guesses: Guesses there are, those that are no words among them.

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
        """A new word."""
        self.secret, self.guesses, self.used = task.private["word"], [], 0
        self.words = words_of(task.private["stride"])
        return GameObservation("guess")

    def act(self, command: str) -> GameObservation:
        """A guess and its marks."""
        guess = command.strip().lower()
        self.used += 1
        late = self.used >= self.max_guesses
        if guess not in self.words:
            return GameObservation(f"{guess or 'nothing'} is not a word here", 0.0, understood=False, truncated=late)
        said = marks(guess, self.secret)
        self.guesses.append((guess, said))
        if guess == self.secret:
            return GameObservation("right", 1.0, terminated=True)
        return GameObservation(" ".join(map("".join, zip(guess, said, strict=True))), 0.0, truncated=late)

    def verdict(self) -> Mapping[str, Any]:
        """Whether the word was found, and how soon."""
        found = bool(self.guesses) and self.guesses[-1][0] == self.secret
        score = 1 - 0.1 * (self.used - 1) if found else 0.0
        return {"success": found, "score": score, "guesses": self.used}

    def admissible(self) -> list[str]:
        """All words."""
        return list(self.words)

    def solve(self) -> str:
        """The word that, of those still possible, shares most letters with the others."""
        left = [word for word in self.words if all(marks(guess, word) == said for guess, said in self.guesses)]
        return best_of(left or list(self.words))


class WordleTasks(GameTasks):
    """Level 1 knows every sixteenth word, level 2 every fourth, level 3 all.

    Args:
        seed: As of `Generated`.
        levels: As of `Generated`.
    """

    name = "wordle"
    game = Wordle

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        stride = (16, 4, 1)[level - 1]
        words = words_of(stride)
        private = {"word": draw.choice(words), "stride": stride}
        return Task("", "", private, {"kind": f"{len(words)} words"})


def words_of(stride: int) -> tuple[str, ...]:
    """Every so many'th word."""
    return WORDS[::stride]


def marks(guess: str, secret: str) -> str:
    """One of `=+-` a letter.

    >>> marks("allow", "llama")
    '+=+--'
    """
    left = Counter(s for g, s in zip(guess, secret, strict=True) if g != s)
    said = []
    for g, s in zip(guess, secret, strict=True):
        if g == s:
            said.append("=")
        elif left[g] > 0:
            left[g] -= 1
            said.append("+")
        else:
            said.append("-")
    return "".join(said)


def best_of(words: Sequence[str]) -> str:
    """The word that splits the others best, as far as single letters tell; the first of several."""
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
