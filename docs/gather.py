"""Gathers what the documentation's site shows into build/site-pages, each file where links of the repository find it.

Links to what the site does not show (code, tests, folders) become links to nothing but text: they are taken off, as a
site without the repository beside it cannot follow them.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parent.parent
INTO = ROOT / "build" / "site-pages"
SHOWN = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "docs/**/*.svg", "docs/**/*.png", "benchmarks/results/**/*.md")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def main() -> None:
    """Gather them anew."""
    shutil.rmtree(INTO, ignore_errors=True)
    shown = {path for pattern in SHOWN for path in ROOT.glob(pattern)}
    for path in sorted(shown):
        aim = INTO / path.relative_to(ROOT)
        aim.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            aim.write_text(_links_kept(path, shown), encoding="utf-8")
        else:
            shutil.copyfile(path, aim)
    results = INTO / "benchmarks" / "results"
    pages = sorted(page.relative_to(results) for page in results.rglob("*.md"))
    lines = [
        f"- [{(results / page).read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}]({page})" for page in pages
    ]
    (results / "index.md").write_text("# Results\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


def _links_kept(path: Path, shown: set[Path]) -> str:
    """A page's text, without links to files that are not shown."""

    def kept(link: re.Match[str]) -> str:
        said, to = link.groups()
        file = to.partition("#")[0]
        if ":" in to or not file or (path.parent / file).resolve() in shown:
            return link[0]
        return said

    return _LINK.sub(kept, path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
