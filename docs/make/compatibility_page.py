"""Page of compatibility: models, templates, benchmarks and servers that were tested, with their versions.

The content is from the result files in `benchmarks/results/raw`. If a file is missing, the page names the command that
writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "raw"
TOP = """# Compatibility

*Generated from the results in [benchmarks/results](../../benchmarks/results) by `make docs`; repeat
measurements there.*

Tests against the original implementations, and their results. The head of each benchmark describes its procedure.

"""
TITLES = {
    "architectures": "Models of Transformers",
    "templates": "Chat templates",
    "bfcl": "The Berkeley Function-Calling Leaderboard",
    "tau2": "tau2-bench",
    "servers": "Servers of environments",
}
"""Result → title of its section."""


def compatibility_page(results: Path = RESULTS) -> str:
    """Return the page, with one section per result.

    Args:
        results: The folder with `architectures.json` and the others.
    """
    return TOP + "\n".join(_section(name, title, results / f"{name}.json") for name, title in TITLES.items())


def _section(name: str, title: str, file: Path) -> str:
    command = f"`python -m benchmarks {name}`"
    if not file.is_file():
        return f"## {title}\n\nNot measured: {command} writes `benchmarks/results/raw/{file.name}`.\n"
    result = json.loads(file.read_text(encoding="utf-8"))
    format_result = {"architectures": _architectures, "templates": _templates}.get(name, _rows)
    page = f" ([all of it](../../benchmarks/results/{name}.md))" if (file.parents[1] / f"{name}.md").is_file() else ""
    return f"## {title}\n\n{command}{page}, with {_versions(result)}.\n\n{format_result(result)}"


def _versions(result: Mapping[str, Any]) -> str:
    """Return the packages and versions of a measurement."""
    versions = dict(result.get("versions", {}))
    if "transformers" in result:
        versions["transformers"] = result["transformers"]
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "versions that were not recorded"


def _architectures(result: Mapping[str, Any]) -> str:
    """Return a table of model kinds by outcome."""
    kinds: dict[str, list[str]] = {}
    for model in result["models"]:
        kinds.setdefault(str(model["outcome"]), []).append(str(model["kind"]))
    lines = ["| outcome | models | |", "| --- | ---: | --- |"]
    lines += [f"| {outcome} | {len(names)} | {', '.join(sorted(names))} |" for outcome, names in sorted(kinds.items())]
    return "\n".join(lines) + "\n"


def _templates(result: Mapping[str, Any]) -> str:
    """Return the number of working templates, and the problems of the others."""
    measured = result["measured"]
    lines = [
        f"{measured['working']} of the {measured['of']} templates llama.cpp tests itself with work, and "
        f"{measured['others_working']} of {measured['others']} others.\n"
    ]
    others = {name: one["verdict"] for name, one in measured["templates"].items() if one["verdict"] != "works"}
    if others:
        lines += ["| the others | |", "| --- | --- |"]
        lines += [f"| {name} | {_cell(verdict)} |" for name, verdict in sorted(others.items())]
    return "\n".join(lines).rstrip("\n") + "\n"


def _rows(result: Mapping[str, Any]) -> str:
    """Return a table with one row per measurement; lists are replaced by their length."""
    measured = result["measured"]
    rows: Sequence[Mapping[str, Any]] = (
        measured
        if isinstance(measured, list)
        else [{"name": name, **(one if isinstance(one, dict) else {"": one})} for name, one in measured.items()]
    )
    columns = list(dict.fromkeys(key for row in rows for key in row if key != "seconds"))
    lines = [f"| {' | '.join(column.replace('_', ' ') for column in columns)} |", f"|{' --- |' * len(columns)}"]
    lines += [f"| {' | '.join(_cell(row.get(column, '')) for column in columns)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(len(value)) if isinstance(value, list | dict) else str(value)
    return " ".join(text.split()).replace("|", "\\|")
