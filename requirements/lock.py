"""Compile the lock files of this directory from `pyproject.toml`, with uv.

Each file pins packages with hashes for CPython 3.11 to 3.13 on Linux (x86-64 and aarch64) and macOS:

    build.txt    build back-ends: what an installation without build isolation needs
    base.txt     `pip install whetstone-rl`, without torch
    <extra>.txt  an extra's packages that the files in `LAYERS` do not have already

torch and its CUDA packages are in none of them: the user chooses the build (`make setup TORCH=…`). torch's small
dependencies are in `base.txt`, therefore the closure is complete and pip installs it with `--no-deps`.

Usage:
    make lock                   keep all pins that still satisfy pyproject.toml
    make lock UPGRADE=1         the newest of everything
    make lock UPGRADE=rich      the newest of one package
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.markers import Marker

HERE = Path(__file__).parent
PYPROJECT = HERE.parent / "pyproject.toml"

BUILD = ("hatchling>=1.27", "editables>=0.5", "setuptools>=77", "wheel>=0.45")
TORCH_NEEDS = ("filelock", "fsspec", "jinja2", "networkx>=2.5.1", "setuptools", "sympy>=1.13.3", "typing-extensions")
"""Dependencies of a CPU build of torch."""

LAYERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "base": ((), ("build",)),
    "dev": (("dev",), ("build", "base")),
    "worlds": (("worlds",), ("build", "base", "dev")),
    "browser": (("browser",), ("build", "base", "dev")),
    "notebooks": (("notebooks",), ("build", "base", "dev")),
    "site": (("site",), ("build", "base", "dev")),
    "bench": (("bench",), ("build", "base", "dev")),
    "mutants": (("mutants",), ("build", "base", "dev")),
    "fuzz": (("fuzz",), ("build", "base", "dev")),
    "cluster": (("ray", "serve", "lora"), ("build", "base")),
}
"""Per file: extras that it installs, and the files that are installed before it."""

HEADER = "# Compiled by `make lock`; do not edit. Install with: pip install --require-hashes --no-deps -r {name}.txt\n"

PLATFORMS = tuple(
    {
        "python_full_version": f"{python}.{patch}",
        "python_version": python,
        "sys_platform": system.lower(),
        "platform_system": system,
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "os_name": "posix",
    }
    for python, patch in (("3.11", "2"), ("3.11", "9"), ("3.12", "0"), ("3.13", "0"))
    for system, machine in (("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64"))
)
"""Environments in which the files are installed; a marker that holds in all of them is left out."""

_REQUIREMENT = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)(?P<marker> *;[^\\\n]*)?[^\n]*\n(?:    .*\n)*", re.M
)


def normalized(name: str) -> str:
    """Normalize a distribution name as PEP 503 does."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[tuple[str, str, str], str]:
    """Parse a compiled file: (name, version, marker) to the text of the entry with its hashes.

    Entries for other platforms are left out.
    """
    entries = {}
    for match in _REQUIREMENT.finditer(text):
        entry, marker = match[0], (match["marker"] or "").strip(" ;")
        holds = [not marker or Marker(marker).evaluate(platform) for platform in PLATFORMS]
        if not any(holds):
            continue
        if marker and all(holds):
            entry, marker = entry.replace(match["marker"], " ", 1), ""
        entries[normalized(match["name"]), match["version"], marker] = entry
    return entries


def compile_with_uv(sources: list[str], *, extras: tuple[str, ...], work: Path, options: list[str]) -> str:
    """Resolve requirements for all supported platforms; torch and triton are excluded."""
    excluded = work / "left-out.txt"
    excluded.write_text("torch; python_version < '3'\ntriton; python_version < '3'\n")
    command = ["uv", "pip", "compile", *sources, "--universal", "--python-version", "3.11", "--override", str(excluded)]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--quiet"]
    command += [word for extra in extras for word in ("--extra", extra)]
    finished = subprocess.run([*command, *options], cwd=PYPROJECT.parent, capture_output=True, text=True)
    if finished.returncode:
        sys.exit(f"lock: uv cannot resolve {', '.join(extras) or 'the base'}\n{finished.stderr}")
    return finished.stdout


def lock(upgrade: str) -> None:
    """Resolve all extras together, then write each file with the shared pins and their hashes."""
    if not shutil.which("uv"):
        sys.exit("lock: uv is not installed; pip install uv, in a separate environment on your PATH")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        needs = work / "needs.txt"
        needs.write_text("\n".join((*TORCH_NEEDS, *BUILD)) + "\n")
        sources = [str(PYPROJECT), str(needs)]

        # one resolution for all files, with the pins there are as preferences
        shared = work / "shared.txt"
        present = {key: None for path in HERE.glob("*.txt") for key in pins(path.read_text())}
        shared.write_text(
            "".join(f"{name}=={version}{marker and f' ; {marker}'}\n" for name, version, marker in present)
        )
        every = tuple(dict.fromkeys(extra for extras, _ in LAYERS.values() for extra in extras))
        options = ["--output-file", str(shared)]
        options += ["--upgrade"] if upgrade == "1" else ["--upgrade-package", upgrade] if upgrade else []
        compile_with_uv(sources, extras=every, work=work, options=options)

        hashed = ["--constraint", str(shared), "--generate-hashes"]
        build = work / "build.in"
        build.write_text("\n".join(BUILD) + "\n")
        closures = {"build": pins(compile_with_uv([str(build)], extras=(), work=work, options=hashed))}
        for name, (extras, _) in LAYERS.items():
            closures[name] = pins(compile_with_uv(sources, extras=extras, work=work, options=hashed))

    for name, closure in closures.items():
        before = {key[0] for layer in LAYERS.get(name, ((), ()))[1] for key in closures[layer]}
        text = HEADER.format(name=name) + "".join(entry for key, entry in closure.items() if key[0] not in before)
        (HERE / f"{name}.txt").write_text(text)


def main() -> None:
    """Read the command line and compile the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--upgrade", default="", help="1 for everything, or the name of a package")
    lock(parser.parse_args().upgrade)


if __name__ == "__main__":
    main()
