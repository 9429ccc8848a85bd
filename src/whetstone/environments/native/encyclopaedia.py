"""Multi-hop search over a generated encyclopaedia: one page per fact, two to four facts per question.

Pages are of people, towns, rivers, companies and lands, every relation has one answer, and every name is made up, so
nothing can be known beforehand; and each task has a world of its own in which the names mean something else, so nothing
can be learned by heart. What a question does not ask for is the distraction.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping
from random import Random

from whetstone.environments.native.scripted import Scripted, call, say
from whetstone.errors import ToolError, did_you_mean
from whetstone.seeding import derive_random
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task

RELATIONS: dict[str, dict[str, str]] = {
    "person": {"birthplace": "town", "employer": "company", "spouse": "person"},
    "town": {"river": "river", "mayor": "person", "land": "land"},
    "company": {"seat": "town", "founder": "person"},
    "river": {"source": "land", "discoverer": "person"},
    "land": {"capital": "town", "ruler": "person"},
}
"""Kind of page → relation → kind of what it leads to."""
_SYLLABLES = ("ba", "do", "ka", "li", "mo", "na", "pe", "ri", "so", "tu", "va", "zo")
_WORLDS, _NAMES = 100_000, 240
Pages = Mapping[str, tuple[str, Mapping[str, str]]]
"""Title → (kind, relation → title)"""


@functools.cache
def names() -> tuple[str, ...]:
    """The titles there are; each world says something else of them."""
    draw = derive_random("encyclopaedia")
    found: dict[str, None] = {}
    while len(found) < _NAMES:
        found["".join(draw.choices(_SYLLABLES, k=3)).capitalize()] = None
    return tuple(found)


@functools.lru_cache(maxsize=512)
def encyclopaedia(count: int, world: int) -> Pages:
    """So many pages of a world, the same in every run."""
    draw = derive_random("encyclopaedia", count, world)
    titles = list(names()[:count])
    draw.shuffle(titles)
    kinds = list(RELATIONS)
    kind_of = {title: kinds[k % len(kinds)] for k, title in enumerate(titles)}
    of_kind = {kind: [title for title in titles if kind_of[title] == kind] for kind in kinds}
    return {
        title: (kind, {relation: draw.choice(of_kind[other]) for relation, other in RELATIONS[kind].items()})
        for title, kind in kind_of.items()
    }


class Encyclopaedia:
    """Two tools, `search` and `read`, over the pages of a task.

    Args:
        results: Titles a search shows.
    """

    effects = "read"
    stateless = True

    def __init__(self, *, results: int = 5) -> None:
        self.results = results
        self.pages: Pages = {}
        self._of = (0, 0)

    def open(self, episode: Episode) -> None:
        """The encyclopaedia of the task."""
        self._of = (episode.task.private["pages"], episode.task.private["world"])
        self.pages = encyclopaedia(*self._of)

    def search(self, query: str) -> str:
        """Find pages by words that stand on them.

        Args:
            query: The words.
        """
        found = _searched(*self._of, query.lower())[: self.results]
        return ", ".join(found) or "no page"

    def read(self, title: str) -> str:
        """Read a page.

        Args:
            title: Its title.
        """
        if title not in self.pages:
            raise ToolError(f"no page {title}{did_you_mean(title, self.pages)}"[:200])
        return written(title, self.pages)


class EncyclopaediaTasks(Scripted):
    """Questions of 2, 3 and 4 hops over 60, 120 and 240 pages, in one of very many worlds.

    Args:
        seed: As of `Generated`.
        levels: As of `Generated`.
    """

    name = "encyclopaedia"  # seeds and task ids keep the name of the first release

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        count, hops = (60, 120, 240)[level - 1], level + 1
        world = draw.randrange(_WORLDS)
        pages = encyclopaedia(count, world)
        while True:
            here = start = draw.choice(list(pages))
            way, asked = [start], []
            for _ in range(hops):
                relation = draw.choice(list(pages[here][1]))
                here = pages[here][1][relation]
                asked.append(relation)
                way.append(here)
            if len(set(way)) == len(way):  # no shorter way, and the answer is not in the question
                break
        question = f"What is the {' of the '.join(reversed(asked))} of {start}?"
        script = [call("search", query=start), *(call("read", title=title) for title in way[:-1]), say(here)]
        private = {"answer": here, "pages": count, "world": world, "script": script}
        return Task("", question, private, {"kind": f"{hops} hops"})


def written(title: str, pages: Pages) -> str:
    """A page."""
    kind, facts = pages[title]
    return f"{title} is a {kind}. " + " ".join(f"{relation}: {other}." for relation, other in facts.items())


@functools.lru_cache(maxsize=512)
def _words(count: int, world: int) -> tuple[list[tuple[str, Counter[str]]], Counter[str]]:
    pages = encyclopaedia(count, world)
    texts = []
    for title in pages:
        words = written(title, pages).lower().replace(".", " ").replace(":", " ").split()
        texts.append((title, Counter(words) + Counter({title.lower(): 2})))
    return texts, Counter(word for _, text in texts for word in text)


@functools.lru_cache(maxsize=4096)
def _searched(count: int, world: int, query: str) -> tuple[str, ...]:
    texts, often = _words(count, world)
    asked = [word for word in query.replace("?", " ").split() if often[word]]
    scores = {title: sum(text[w] * math.log(1 + count / often[w]) for w in asked) for title, text in texts}
    return tuple(sorted((t for t in scores if scores[t] > 0), key=lambda t: (-scores[t], t)))
