"""Version of the installed distribution, and install commands of optional dependencies.

Note:
    The distribution is called `whetstone-rl`. The name `whetstone` on the package index belongs to another project, so
    a command with that name would install the wrong package.
"""

from __future__ import annotations

import functools
from importlib import metadata

from packaging.requirements import Requirement

DISTRIBUTION = "whetstone-rl"
"""Name on the package index; the import name and the command are `whetstone`."""


@functools.cache
def get_package_version() -> str:
    """Return the package version, such as `0.3.0`; `unknown` if the package is not installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


@functools.cache
def install_command(extra: str) -> str:
    """Return the install command of an extra: `pip install 'duckdb>=1.4' 'psycopg[binary]>=3.2'`.

    Args:
        extra: Name of the extra in `pyproject.toml`.
    """
    try:
        requires = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        requires = []
    wanted = [r for r in requires if r.marker is not None and not r.marker.evaluate({"extra": ""})]
    named = [f"'{_bare(r)}'" for r in wanted if r.marker is not None and r.marker.evaluate({"extra": extra})]
    return f"pip install {' '.join(named)}" if named else f"pip install '{DISTRIBUTION}[{extra}]'"


def _bare(requirement: Requirement) -> str:
    """Return a requirement without its marker."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"
