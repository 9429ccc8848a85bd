"""How do our verdicts agree with a benchmark's own? A page and a file of the answers that were judged by both."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import whetstone
from circumstances import circumstances

_AT_ONCE = 50
_COLUMNS = ("tasks", "gold: agreed", "gold: right", "mutated", "agreed", "right")


class Verdicts:
    """Verdicts by what was judged, kept in a file, so that a comparison that was stopped goes on where it was.

    Those of other code, or of another version of the benchmark, are not taken.

    Args:
        path: A line of JSON for each; none: nothing is kept.
        of: Our files that decide, below the package.
        version: The benchmark's.
        seconds: After so long no more is judged; none: without end.
    """

    def __init__(self, path: Path | None, *, of: Sequence[str], version: str, seconds: float | None = None) -> None:
        package = Path(whetstone.__file__).parent
        decides = [version.encode(), *((package / name).read_bytes() for name in of)]
        self._path, self._stamp = path, hashlib.sha256(b"".join(decides)).hexdigest()[:16]
        self._until = None if seconds is None else time.monotonic() + seconds
        self._known: dict[str, list[Any]] = {}
        self.version = version
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                stamp, key, verdict = json.loads(line)
                if stamp == self._stamp:
                    self._known[key] = verdict

    def of(self, cases: Sequence[Any], judge: Callable[[Sequence[Any]], Sequence[tuple[Any, Any]]]) -> list[list[Any]]:
        """(here, there, seconds) of each case; those that are not known are judged, some at once.

        Raises:
            SystemExit: The time is up; the next run goes on from here.
        """
        keys = [hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()[:24] for case in cases]
        missing = {key: case for key, case in zip(keys, cases, strict=True) if key not in self._known}
        for start in range(0, len(missing), _AT_ONCE):
            if self._until is not None and time.monotonic() > self._until:
                raise SystemExit(f"{len(missing) - start} of {len(cases)} are not judged yet: run it again to go on")
            some, began = list(missing.items())[start : start + _AT_ONCE], time.perf_counter()
            verdicts = judge([case for _, case in some])
            each = round((time.perf_counter() - began) / len(some), 5)
            for (key, _), (here, there) in zip(some, verdicts, strict=True):
                self._known[key] = [here, there, each]
                if self._path is not None:
                    with self._path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps([self._stamp, key, self._known[key]]) + "\n")
        return [self._known[key] for key in keys]


def page(
    found: Sequence[Mapping[str, Any]],
    *,
    kind: str,
    opening: Sequence[str],
    told: Callable[[Mapping[str, Any], Mapping[str, Any]], str],
    more: Mapping[str, str] | None = None,
) -> str:
    """The figures of each kind as a table, and every difference.

    Args:
        found: A mapping each, with `gold_agreed` and the like.
        kind: What each is of: the name of the first column, and the key it stands under.
        opening: The lines in front of the table.
        told: (what it is found in, a difference) → its line.
        more: Keys of further columns, and what these are called.
    """
    more = more or {}
    columns = (kind, *_COLUMNS, *more.values())
    lines = [*opening, f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for one in found:
        share = one["mutated_agreed"] / max(1, one["mutated"])
        cells = [one[kind], one["tasks"], one["gold_agreed"], one["gold_right"], one["mutated"]]
        cells += [f"{one['mutated_agreed']} ({share:.1%})", one["mutated_right"], *(one[key] for key in more)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines.append("\n## Differences\n")
    lines += [f"- {told(one, each)}" for one in found for each in one["differences"]] or ["None."]
    return "\n".join(lines) + "\n"


def reported(
    name: str,
    found: Sequence[Mapping[str, Any]],
    page: str,
    *,
    versions: Mapping[str, str],
    began: float,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Print it as a page or as JSON, and write both into a folder where there is one.

    Args:
        versions: Of the packages it was measured with, by name.
    """
    result = {"name": name, "measured": found, "goal": "gold 100 %, mutated 99.5 %", "versions": versions}
    result |= circumstances(began)
    if folder:
        (folder / f"{name}.md").write_text(page, encoding="utf-8")
        (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result) if as_json else page)
