"""How is a benchmark of many runs made known? As a table on a page, and as what it is made of beside it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def with_publishing(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser with `--json` and `--write FOLDER`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", type=Path, help="a folder for the table and what it is made of")
    return parser


def publish(told: dict[str, Any], table_of: Callable[[dict[str, Any]], str], arguments: argparse.Namespace) -> None:
    """Print a result, and write it where asked."""
    if arguments.write is not None:
        arguments.write.mkdir(parents=True, exist_ok=True)
        (arguments.write / f"{told['name']}.json").write_text(json.dumps(told, indent=1) + "\n")
        (arguments.write / f"{told['name']}.md").write_text(table_of(told))
    print(json.dumps(told) if arguments.json else table_of(told))
