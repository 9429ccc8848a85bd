"""Output of a benchmark with many runs: a page with a table, and its figures as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_output_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add `--json` and `--write FOLDER` to a parser and return it."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", type=Path, help="folder for the table and its figures")
    return parser


def store_result(folder: Path, name: str, result: dict[str, Any], format_page: Callable[[dict[str, Any]], str]) -> None:
    """Write `raw/NAME.json` and the page `NAME.md` in a folder."""
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    (folder / "raw" / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / f"{name}.md").write_text(format_page(result))


def publish(
    result: dict[str, Any], format_page: Callable[[dict[str, Any]], str], arguments: argparse.Namespace
) -> None:
    """Print a result and optionally write it."""
    if arguments.write is not None:
        store_result(arguments.write, result["name"], result, format_page)
    print(json.dumps(result) if arguments.json else format_page(result))
