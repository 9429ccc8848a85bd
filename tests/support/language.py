"""Patterns of language that the project no longer uses, and their number in each file.

The counts of the tree are in `repository/language_counts.json`. `repository/test_language.py` fails if a count differs:
if a count rose, use other words; a count that fell is stored, so that it cannot rise again.

Usage:
    python tests/support/language.py                 what rose and what fell
    python tests/support/language.py FILE...         every hit in a file, with its line
    python tests/support/language.py --lower         store the counts that fell
    python tests/support/language.py --moved OLD NEW pass the count of a file on to its new name
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
COUNTS = ROOT / "tests/repository/language_counts.json"
SUFFIXES = (".py", ".md", ".yaml", ".j2", ".js")
FOLDERS = ("src", "docs", "examples", "benchmarks", "tests")
EXCLUDED = ("CHANGELOG.md", "benchmarks/results/", "tests/data/", "tests/repository/", "tests/support/language.py")
"""The history, stored results, files of other programs, and the patterns themselves."""

PROSE = {
    "place word for time or relation: after, before, next to": r"behind|in front of|beside",
    "where for a condition: if, when": r"where (?:it|that|there|a|an|one|nothing|nobody|the|this|they|some|no)",
    "clause instead of a noun": r"what (?:is|was|it|they|came|stands|becomes|a|the)",
    "people for components: the component, or passive": r"nobody|somebody|whoever|everybody|anybody",
    "say or tell for data: specify, report, receive": r"(?:is|are|was|were|be) (?:said|told)|told of|says?",
    "come to, come of: amount to, result from": r"(?:comes?|came|coming) (?:to|of|about)|becomes? of",
    "go on: continue, resume": r"(?:goes|go|went|gone|going) on",
    "stand, lie: is, is located": r"stands?|lies|lie",
    "of its own, of ours: own, custom, built-in": r"of (?:its|one's|their|his) own|of (?:yours|ours)",
    "as of: same as for": r"as of",
    "so many: N, at most N, while": r"so (?:many|long|far as|much)",
    "alone: only": r"alone",
    "draw: sample": r"drawn|draws?|drew",
    "under way: in flight, running": r"under way",
    "in the mean: on average": r"in the mean",
    "anew: again, from the start": r"anew|made (?:again|over)",
    "of nothing: from scratch": r"(?:of|from) nothing",
    "begin: start": r"beg[iau]ns?",
    "hear, foretell, alike, foreign: receive, predict, equal, untrusted": (
        r"heard|hears?|foret(?:ell|old)|likelier|alike|foreign"
    ),
    "a for per": (
        r"(?:one|line|number|tokens|nats|calls|requests|row) an? "
        r"(?:step|turn|token|task|line|second|minute|trajectory|episode|row|field)"
    ),
}
"""Description with what to write instead → regular expression between word boundaries, in any case."""
_NAMED = {f"p{number}": description for number, description in enumerate(PROSE)}
_PROSE = re.compile(
    r"\b(?:" + "|".join(f"(?P<{name}>{PROSE[text]})" for name, text in _NAMED.items()) + r")\b", re.IGNORECASE
)
_FRAGMENT = re.compile(r"\s*(?:Of|Those of|As of|That of) ")
_NAME = re.compile(
    r"_?(?:said|told|found|held|given|taught|shown|heard|asked|made|kept|gone_?\w*|worth|again|whole|behind|beside|"
    r"there|here|ours|theirs|mine|alike|apart|left_out|let_go|under_way)"
)
_BRITISH = re.compile(
    r"(?:normal|optim|summar|serial|token|initial|general|minim|maxim|regular|random|quant|standard|penal|recogn|organ)"
    r"is(?:e|ed|er|es|ing|ation)(?![a-z])|colour|behaviour|neighbour|honour|favour|licence|catalogue|labell|modell|"
    r"judgement|centre|analys(?:e|ed|ing)(?![a-z])",
    re.IGNORECASE,
)
_DEFINITIONS = {ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.arg}
_WITHOUT_TEXT = {"ctx", "op", "ops", "name", "id", "attr", "lineno", "type_comment", "asname", "module", "level"}
"""Fields of a syntax tree that hold neither a text nor a definition."""
_CODE = re.compile(r"`[^`]*`")


class Hit(NamedTuple):
    """One occurrence of a pattern."""

    line: int
    pattern: str
    text: str


def find_hits(path: Path) -> list[Hit]:
    """Return the hits in a file, in no order."""
    text = path.read_text(encoding="utf-8")
    return list(_hits_in_python(text) if path.suffix == ".py" else _hits_in_page(text))


def _hits_in_page(text: str) -> Iterator[Hit]:
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield from _hits_in_prose(_CODE.sub("", line), number)


def _hits_in_prose(text: str, line: int) -> Iterator[Hit]:
    for match in _PROSE.finditer(text):
        excerpt = text[max(0, match.start() - 30) : match.end() + 30].replace("\n", " ")
        yield Hit(line + text.count("\n", 0, match.start()), _NAMED[str(match.lastgroup)], excerpt)


def _hits_in_python(text: str) -> Iterator[Hit]:
    tree = ast.parse(text)
    first = tree.body[0] if tree.body else None
    docstring = first.value if isinstance(first, ast.Expr) else None
    for node in _walk(tree):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and " " in node.value:
                prose = _CODE.sub("", node.value)
                if node is docstring and "?" in prose.strip().split("\n\n")[0]:
                    yield Hit(node.lineno, "module docstring with a question", prose.strip().splitlines()[0])
                if _FRAGMENT.match(prose):
                    yield Hit(node.lineno, "genitive fragment", prose.strip()[:80])
                yield from _hits_in_prose(prose, node.lineno)
            continue
        name = _name_of(node)
        if name:
            if _NAME.fullmatch(name):
                yield Hit(node.lineno, "name that is no noun", name)  # type: ignore[attr-defined]
            if _BRITISH.search(name):
                yield Hit(node.lineno, "British spelling of a name", name)  # type: ignore[attr-defined]
    for number, line in enumerate(text.splitlines(), 1):
        if "# " in line and (comment := re.search(r"(?:^|\s)# (.*)", line)):
            yield from _hits_in_prose(comment[1], number)


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield texts and definitions of names; twice as fast as `ast.walk`, which yields each operator and context."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        kind = type(node)
        if kind is ast.Constant or kind is ast.Name:
            yield node
            continue
        if kind in _DEFINITIONS:
            yield node
        for field in node._fields:
            if field in _WITHOUT_TEXT:
                continue
            value = getattr(node, field, None)
            if type(value) is list:
                waiting += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST):
                waiting.append(value)


def _name_of(node: ast.AST) -> str:
    """Return the name that a node defines, or an empty string."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""


def list_files(root: Path = ROOT) -> list[str]:
    """Return the tracked and new files that are checked, relative to the root of the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS, "*.md"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(
        {
            name
            for name in listed
            if name.endswith(SUFFIXES) and not name.startswith(EXCLUDED) and (root / name).is_file()
        }
    )


def count_hits(root: Path = ROOT) -> dict[str, int]:
    """Return the number of hits of each file that has any."""
    was_enabled = gc.isenabled()
    gc.disable()  # no tree has cycles, and the collector would search each of them
    try:
        counts = {name: len(find_hits(root / name)) for name in list_files(root)}
    finally:
        if was_enabled:
            gc.enable()
    return {name: count for name, count in counts.items() if count}


def stored_counts() -> dict[str, int]:
    """Return the counts that `--lower` has stored."""
    counts: dict[str, int] = json.loads(COUNTS.read_text(encoding="utf-8"))
    return counts


def store_counts(counts: dict[str, int]) -> None:
    """Store counts, one file per line."""
    COUNTS.write_text(json.dumps(dict(sorted(counts.items())), indent=0) + "\n", encoding="utf-8")


def describe_rise(root: Path, name: str, stored: int) -> str:
    """Return what to do about a file whose count rose, with its hits."""
    hits = sorted(find_hits(root / name))
    lines = [f"  {name}:{hit.line}  {hit.pattern}: {hit.text}" for hit in hits[:20]]
    return "\n".join([f"{name}: {len(hits)} hits, {stored} allowed; write the new ones in other words", *lines])


def main() -> int:
    """Compare the tree with the stored counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--lower", action="store_true")
    parser.add_argument("--moved", nargs=2, metavar=("OLD", "NEW"))
    arguments = parser.parse_args()
    if arguments.files:
        for path in arguments.files:
            for hit in sorted(find_hits(path)):
                print(f"{path}:{hit.line}  {hit.pattern}: {hit.text}")
        return 0
    stored = stored_counts() if COUNTS.is_file() else count_hits()
    if arguments.moved:
        old, new = arguments.moved
        stored[new] = stored.pop(old)
        store_counts(stored)
    counts = count_hits()
    if arguments.lower:
        store_counts({name: min(count, stored[name]) for name, count in counts.items() if name in stored})
    rose = [name for name, count in counts.items() if count > stored.get(name, 0)]
    for name in rose:
        print(describe_rise(ROOT, name, stored.get(name, 0)))
    fell = sum(stored.values()) - sum(counts.values())
    print(f"{sum(counts.values())} hits in {len(counts)} files; {len(rose)} files rose, {fell} hits fewer than stored")
    return 1 if rose else 0


if __name__ == "__main__":
    sys.exit(main())
