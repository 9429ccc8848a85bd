"""Multi-hop search over a generated encyclopedia: one page per entity, two to four facts per question.

Pages describe people, towns, rivers, companies and lands. Every relation has one answer, and every name is invented, so
that models have no prior knowledge. Each task samples one of many worlds, in which the names have other facts, so that
answers cannot be memorized. Facts that the question does not need are distractors.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping
from random import Random

from whetstone.environments.built_in.scripted_tasks import Scripted, script_call, script_text
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
"""Kind of page → relation → kind of the related page."""
_SYLLABLES = ("ba", "do", "ka", "li", "mo", "na", "pe", "ri", "so", "tu", "va", "zo")
_WORLDS, _NAMES = 100_000, 240
Pages = Mapping[str, tuple[str, Mapping[str, str]]]
"""Pages of a world: title → (kind, relation → title of the related page)."""


@functools.cache
def page_titles() -> tuple[str, ...]:
    """Return the titles of all pages, the same in every world."""
    draw = derive_random("encyclopaedia")
    titles: dict[str, None] = {}
    while len(titles) < _NAMES:
        titles["".join(draw.choices(_SYLLABLES, k=3)).capitalize()] = None
    return tuple(titles)


@functools.lru_cache(maxsize=512)
def build_pages(count: int, world: int) -> Pages:
    """Return the pages of a world, the same in every run.

    Args:
        count: Number of pages.
        world: Number of the world, which determines the facts.
    """
    draw = derive_random("encyclopaedia", count, world)
    titles = list(page_titles()[:count])
    draw.shuffle(titles)
    kinds = list(RELATIONS)
    kind_of = {title: kinds[k % len(kinds)] for k, title in enumerate(titles)}
    of_kind = {kind: [title for title in titles if kind_of[title] == kind] for kind in kinds}
    return {
        title: (kind, {relation: draw.choice(of_kind[other]) for relation, other in RELATIONS[kind].items()})
        for title, kind in kind_of.items()
    }


class Encyclopaedia:
    """Tools over the pages of a task: `search` and `read`.

    Args:
        results: Maximum number of titles that a search returns.
    """

    effects = "read"
    stateless = True

    def __init__(self, *, results: int = 5) -> None:
        self.results = results
        self.pages: Pages = {}
        self._of = (0, 0)

    def open(self, episode: Episode) -> None:
        """Load the encyclopedia pages of the task's world."""
        self._of = (episode.task.private["pages"], episode.task.private["world"])
        self.pages = build_pages(*self._of)

    def search(self, query: str) -> str:
        """Find pages by words that stand on them.

        Args:
            query: The words.
        """
        titles = _search_pages(*self._of, query.lower())[: self.results]
        return ", ".join(titles) or "no page"

    def read(self, title: str) -> str:
        """Read a page.

        Args:
            title: Its title.
        """
        if title not in self.pages:
            raise ToolError(f"no page {title}{did_you_mean(title, self.pages)}"[:200])
        return format_page(title, self.pages)


class EncyclopaediaTasks(Scripted):
    """Task source of questions of 2, 3 and 4 hops at levels 1, 2 and 3.

    The encyclopedia has 60, 120 and 240 pages. Each task has one of 100,000 worlds.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    name = "encyclopaedia"  # seeds and task ids keep the name of the first release

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        count, hops = (60, 120, 240)[level - 1], level + 1
        world = draw.randrange(_WORLDS)
        pages = build_pages(count, world)
        while True:
            page = start = draw.choice(list(pages))
            way, relations = [start], []
            for _ in range(hops):
                relation = draw.choice(list(pages[page][1]))
                page = pages[page][1][relation]
                relations.append(relation)
                way.append(page)
            if len(set(way)) == len(way):  # no shorter path, and the answer is not in the question
                break
        question = f"What is the {' of the '.join(reversed(relations))} of {start}?"
        script = [
            script_call("search", query=start),
            *(script_call("read", title=title) for title in way[:-1]),
            script_text(page),
        ]
        private = {"answer": page, "pages": count, "world": world, "script": script}
        return Task("", question, private, {"kind": f"{hops} hops"})


def format_page(title: str, pages: Pages) -> str:
    """Return the text of an encyclopedia page: its kind and all its facts."""
    kind, facts = pages[title]
    return f"{title} is a {kind}. " + " ".join(f"{relation}: {other}." for relation, other in facts.items())


@functools.lru_cache(maxsize=512)
def _words(count: int, world: int) -> tuple[list[tuple[str, Counter[str]]], Counter[str]]:
    """Return the word counts of each page, and the number of pages with each word."""
    pages = build_pages(count, world)
    texts = []
    for title in pages:
        words = format_page(title, pages).lower().replace(".", " ").replace(":", " ").split()
        texts.append((title, Counter(words) + Counter({title.lower(): 2})))
    return texts, Counter(word for _, text in texts for word in text)


@functools.lru_cache(maxsize=4096)
def _search_pages(count: int, world: int, query: str) -> tuple[str, ...]:
    """Return the titles of pages that match a query, the best first."""
    texts, often = _words(count, world)
    words = [word for word in query.replace("?", " ").split() if often[word]]
    scores = {title: sum(text[w] * math.log(1 + count / often[w]) for w in words) for title, text in texts}
    return tuple(sorted((t for t in scores if scores[t] > 0), key=lambda t: (-scores[t], t)))
