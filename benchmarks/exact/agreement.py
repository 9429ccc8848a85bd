"""Agreement of Whetstone's verdicts with the checkers of a published benchmark: stored verdicts and a page."""

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
    """Verdicts per case, stored in a file, so that an interrupted comparison resumes.

    Stored verdicts of different code, or of another version of the benchmark, are ignored.

    Args:
        path: File with one line of JSON per verdict; None stores nothing.
        of: Files of the package that determine a verdict, relative to it.
        version: Version of the benchmark.
        seconds: Time limit; None for no limit.
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
        """Return (verdict of Whetstone, verdict of the benchmark, seconds) per case; judge missing cases in batches.

        Raises:
            SystemExit: The time limit is reached; the next run continues from here.
        """
        keys = [hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()[:24] for case in cases]
        missing = {key: case for key, case in zip(keys, cases, strict=True) if key not in self._known}
        for start in range(0, len(missing), _AT_ONCE):
            if self._until is not None and time.monotonic() > self._until:
                raise SystemExit(
                    f"{len(missing) - start} of {len(cases)} are not judged yet: run the same command to continue"
                )
            some, began = list(missing.items())[start : start + _AT_ONCE], time.perf_counter()
            verdicts = judge([case for _, case in some])
            each = round((time.perf_counter() - began) / len(some), 5)
            for (key, _), (whetstone_verdict, reference_verdict) in zip(some, verdicts, strict=True):
                self._known[key] = [whetstone_verdict, reference_verdict, each]
                if self._path is not None:
                    with self._path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps([self._stamp, key, self._known[key]]) + "\n")
        return [self._known[key] for key in keys]


def page(
    results: Sequence[Mapping[str, Any]],
    *,
    kind: str,
    introduction: Sequence[str],
    format_difference: Callable[[Mapping[str, Any], Mapping[str, Any]], str],
    more: Mapping[str, str] | None = None,
) -> str:
    """Return a page with a table of results and a list of all differences.

    Args:
        found: Results with the keys `gold_agreed`, `mutated` and so on.
        kind: Name of the first column, and its key in a result.
        opening: Lines before the table.
        told: (result, difference) → line of the list.
        more: Key → heading of further columns.
    """
    more = more or {}
    columns = (kind, *_COLUMNS, *more.values())
    lines = [*introduction, f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for result in results:
        share = result["mutated_agreed"] / max(1, result["mutated"])
        cells = [result[kind], result["tasks"], result["gold_agreed"], result["gold_right"], result["mutated"]]
        cells += [f"{result['mutated_agreed']} ({share:.1%})", result["mutated_right"], *(result[key] for key in more)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines.append("\n## Differences\n")
    lines += [
        f"- {format_difference(result, difference)}" for result in results for difference in result["differences"]
    ] or ["None."]
    return "\n".join(lines) + "\n"


def publish_agreement(
    name: str,
    results: Sequence[Mapping[str, Any]],
    page: str,
    *,
    versions: Mapping[str, str],
    began: float,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Print a result as a page or as JSON, and write both into a folder if one is given.

    Args:
        versions: Package → version that was measured.
    """
    result = {"name": name, "measured": results, "goal": "gold 100 %, mutated 99.5 %", "versions": versions}
    result |= circumstances(began)
    if folder:
        (folder / f"{name}.md").write_text(page, encoding="utf-8")
        (folder / "raw").mkdir(parents=True, exist_ok=True)
        (folder / "raw" / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result) if as_json else page)
