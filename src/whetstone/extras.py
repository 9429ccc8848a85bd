"""How does somebody get what an optional part needs? By the packages' own names, from a clone as from a release.

Easy to get wrong: the distribution is called `whetstone-rl`. The name `whetstone` on the package index is somebody
else's, and a command that names it installs a stranger's package.
"""

from __future__ import annotations

import functools
from importlib import metadata

from packaging.requirements import Requirement

DISTRIBUTION = "whetstone-rl"
"""What the package index knows it by; import and command are `whetstone`."""


@functools.cache
def release() -> str:
    """Its version, such as `0.1.0`; `unknown` where the source is used without being installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


@functools.cache
def install_command(extra: str) -> str:
    """What to type for the packages of one of its extras: `pip install 'duckdb>=1.4' 'psycopg[binary]>=3.2'`.

    Args:
        extra: As `pyproject.toml` has it.
    """
    try:
        requires = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        requires = []
    wanted = [r for r in requires if r.marker is not None and not r.marker.evaluate({"extra": ""})]
    named = [f"'{_bare(r)}'" for r in wanted if r.marker is not None and r.marker.evaluate({"extra": extra})]
    return f"pip install {' '.join(named)}" if named else f"pip install '{DISTRIBUTION}[{extra}]'"


def _bare(requirement: Requirement) -> str:
    """Without its marker."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"
