"""Readers of the tables of options on the pages of docs/reference/."""

import inspect
import re
from pathlib import Path

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def page_defaults(page, name):
    """Return {option: default} of the entry `name`, as written on the page."""
    entry = (REFERENCE / page).read_text().partition(f"### `{name}`\n")[2].partition("\n### ")[0].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", entry, re.MULTILINE))


def options(part):
    """Return {option: default} of a signature, in the form of a page."""
    defaults = {}
    for p in inspect.signature(part).parameters.values():
        if p.kind is p.KEYWORD_ONLY:
            defaults[p.name] = (
                "needed" if p.default is p.empty else str(getattr(p.default, "__name__", p.default)) or '""'
            )
    return defaults
