"""Copy the pages of the documentation site to build/site-pages, in the layout that their links expect.

Links to files that are not on the site (code, tests, folders) are replaced by their text.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
INTO = ROOT / "build" / "site-pages"
SHOWN = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "docs/**/*.svg", "docs/**/*.png", "benchmarks/results/**/*.md")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def main() -> None:
    """Copy all pages."""
    shutil.rmtree(INTO, ignore_errors=True)
    pages = {path for pattern in SHOWN for path in ROOT.glob(pattern)}
    for path in sorted(pages):
        aim = INTO / path.relative_to(ROOT)
        aim.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            aim.write_text(_filter_links(path, pages), encoding="utf-8")
        else:
            shutil.copyfile(path, aim)
    results = INTO / "benchmarks" / "results"
    result_pages = sorted(page.relative_to(results) for page in results.rglob("*.md"))
    lines = [
        f"- [{(results / page).read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}]({page})"
        for page in result_pages
    ]
    (results / "index.md").write_text("# Results\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


def _filter_links(path: Path, pages: set[Path]) -> str:
    """Return the text of a page without links to files that are not on the site."""

    def replace_link(link: re.Match[str]) -> str:
        text, to = link.groups()
        file = to.partition("#")[0]
        if ":" in to or not file or (path.parent / file).resolve() in pages:
            return link[0]
        return text

    return _LINK.sub(replace_link, path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
