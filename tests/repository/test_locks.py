"""Lock files and licenses: complete, hashed, consistent with `pyproject.toml`, and no unreviewed copyleft license."""

import importlib.util
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)[^\n]*\n((?:    .*\n)*)", re.M)


def load(name):
    """Load a script of `requirements/` as a module."""
    spec = importlib.util.spec_from_file_location(f"requirements_{name}", ROOT / "requirements" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pins_of(*names):
    """Collect name and version of everything that lock files pin."""
    return {
        canonicalize_name(name): version
        for path in LOCKS
        if not names or path.stem in names
        for name, version, _ in ENTRY.findall(path.read_text())
    }


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_pin_has_hashes_and_no_address(path):
    text = path.read_text()
    entries = ENTRY.findall(text)
    assert entries
    for name, _, hashes in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", hashes), name
    assert "://" not in text
    covered = "".join(match[0] for match in ENTRY.finditer(text))
    assert re.sub(r"^#.*\n", "", text, flags=re.M) == covered


def test_torch_is_in_no_lock_file_and_its_small_dependencies_are():
    pins = pins_of()
    assert not {name for name in pins if name in ("torch", "triton") or name.startswith(("nvidia-", "cuda-"))}
    assert set(load("lock").TORCH_NEEDS) <= {*map(str, pins_of("build", "base")), "networkx>=2.5.1", "sympy>=1.13.3"}


def test_no_package_is_pinned_in_two_files_of_one_environment():
    lock = load("lock")
    for name, (_, before) in lock.LAYERS.items():
        assert not set(pins_of(name)) & set(pins_of(*before)), name


@pytest.mark.parametrize("extra", ["", "dev", "worlds", "browser", "notebooks", "site", "bench", "mutants", "fuzz"])
def test_lock_files_satisfy_pyproject(extra):
    wanted = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    pins = pins_of("build", "base", *(["dev", extra] if extra else []))
    waiting = list(wanted)
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name == canonicalize_name(PROJECT["name"]):
            waiting += [text for wanted in requirement.extras for text in PROJECT["optional-dependencies"][wanted]]
        elif name != "torch":
            assert name in pins, f"{requirement}: run `make lock`"
            assert requirement.specifier.contains(pins[name]), f"{requirement}: run `make lock`"


def test_base_install_has_no_copyleft_license_that_was_not_reviewed():
    licenses = load("licenses")
    packages = {canonicalize_name(package.name): package for package in metadata.distributions()}
    names = {
        name: licenses.license_of(packages[name])
        for name in licenses.packages_of(PROJECT["dependencies"], packages)
        if name in packages
    }
    assert {"torch", "transformers", "numpy"} <= set(names)
    unknown = {name: text for name, text in names.items() if licenses.is_copyleft(text) or text == "unknown"}
    assert set(unknown) <= set(licenses.KNOWN_COPYLEFT), f"not in KNOWN_COPYLEFT of requirements/licenses.py: {unknown}"


@pytest.mark.parametrize(
    ("text", "copyleft"),
    [
        ("GPL-2.0-only", True),
        ("GNU General Public License v2 or later (GPLv2+)", True),
        ("LGPL-3.0-only", True),
        ("AGPL-3.0", True),
        ("MPL-2.0 AND MIT", True),
        ("Mozilla Public License 2.0 (MPL 2.0)", True),
        ("MIT", False),
        ("Apache-2.0 AND BSD-3-Clause", False),
        ("Python Software Foundation License", False),
    ],
)
def test_copyleft_licenses_are_recognized(text, copyleft):
    assert load("licenses").is_copyleft(text) == copyleft


def test_license_page_lists_every_pin():
    licenses = load("licenses")
    rows = licenses.rows_of(licenses.PAGE.read_text())
    assert {name: row[:2] for name, row in rows.items()} == licenses.locked(), "run requirements/licenses.py"
    assert not [name for name, row in rows.items() if row[2] == "unknown"]
    assert {name for name, row in rows.items() if licenses.is_copyleft(row[2])} <= set(licenses.KNOWN_COPYLEFT)
