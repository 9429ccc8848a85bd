"""Reads the tables of options on the pages of docs/."""

import inspect
import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def told(page, name):
    """{option: default} of the entry `name`, as they are written there."""
    entry = (DOCS / page).read_text().partition(f"### `{name}`\n")[2].partition("\n### ")[0].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", entry, re.MULTILINE))


def options(part):
    """{option: default} of a signature, as a page writes them."""
    found = {}
    for p in inspect.signature(part).parameters.values():
        if p.kind is p.KEYWORD_ONLY:
            found[p.name] = "needed" if p.default is p.empty else str(getattr(p.default, "__name__", p.default)) or '""'
    return found
