"""What produced a run, in `environment.json`: versions, commit, machine and digests of the custom code.

A run that resumes with other custom code is refused, unless the caller accepts the changes. Accepted changes, and other
versions or machines, are stored as events.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import torch

from whetstone.assembly.placement import policy_device
from whetstone.atomic_write import write_text
from whetstone.errors import RunDirectoryError
from whetstone.optional_dependencies import get_package_version
from whetstone.plugins import get_search_paths
from whetstone.policies import describe_device, num_threads
from whetstone.recipe import Resolved
from whetstone.record import read_json, write_json
from whetstone.record.custom_code import changed_custom_code, digest_custom_code, find_custom_code, secret_lines
from whetstone.record.run_directory import ENVIRONMENT

_PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "numpy", "peft", "accelerate", "datasets", "pydantic",
    "ray", "vllm", "sglang", "mcp", "gymnasium", "openai", "wandb", "mlflow", "trackio", "tensorboard",
)  # fmt: skip
_INSTRUCTION_SETS = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512",
    "avx_vnni",
    "amx",
    "neon",
    "asimd",
    "bf16",
    "sve",
)
_CODE = "code"
"""Folder of a run with copies of its custom code."""
_SECONDS = 10.0
_FACTS = ("whetstone", "python", "packages", "system", "processor", "device", "threads")
"""Facts whose change is reported when a run resumes."""


def record_environment(
    run_dir: Path, resolved: Resolved, *, accept_changes: bool, report: Callable[[str], None]
) -> None:
    """Write `environment.json` when a run starts; on resume, compare it and record the differences.

    Args:
        run_dir: Run directory.
        resolved: Recipe of the run.
        accept_changes: Whether a run resumes although its custom code changed.
        report: Receives one line per change.

    Raises:
        RunDirectoryError: If the custom code changed and `accept_changes` is False.
    """
    path, now = run_dir / ENVIRONMENT, {**describe_environment(resolved), "modules": digest_custom_code(resolved)}
    before = read_json(path)
    if not isinstance(before, dict):
        if now["modules"] and (run_dir / "checkpoints").exists():
            report(f"{run_dir}: an earlier release stored no digests of its code; the code is recorded as it is now")
        write_json(path, {"started": _now(), **now, "events": []}, is_private=True)
        _copy_code(run_dir, resolved, report)
        return
    changed = changed_custom_code(_last(before, "modules"), now["modules"])
    if changed and not accept_changes:
        _refuse(run_dir, changed, now, before)
    for file, how in changed.items():
        report(f"{_short(file)} was {how}; the run continues with the new code (recorded in {ENVIRONMENT})")
    facts = {name: now[name] for name in _FACTS if now[name] != _last(before, name)}
    for name, value in facts.items():
        report(f"{name} changed since the run started: {_difference(_last(before, name), value)}")
    event = {"time": _now(), "event": "resumed", **facts, **({"modules": now["modules"]} if changed else {})}
    write_json(path, {**before, "events": [*before.get("events", []), event]}, is_private=True)
    if changed:
        _copy_code(run_dir, resolved, report)


def check_custom_code(run_dir: Path, resolved: Resolved) -> None:
    """Check that the custom code of a run is unchanged since its start or last resume.

    Raises:
        RunDirectoryError: If it changed.
    """
    before = read_json(run_dir / ENVIRONMENT)
    if isinstance(before, dict):
        now = {"modules": digest_custom_code(resolved)}
        changed = changed_custom_code(_last(before, "modules"), now["modules"])
        if changed:
            _refuse(run_dir, changed, now, before)


def _refuse(run_dir: Path, changed: Mapping[str, str], now: Mapping[str, Any], before: Mapping[str, Any]) -> NoReturn:
    files = "; ".join(f"{_short(file)} ({_key(file, now, before)}) was {how}" for file, how in changed.items())
    remedy = "resume with --accept-changes to continue with the new code, or choose another --run-dir"
    if "removed" in changed.values():
        remedy += "; code that was moved is found if its folder is in PYTHONPATH"
    raise RunDirectoryError(f"{run_dir}: the code of this run changed: {files}; {remedy}")


def describe_environment(resolved: Resolved) -> dict[str, Any]:
    """Return versions, machine, device and git commit, the content of `environment.json`."""
    name, instructions = describe_processor()
    return {
        "whetstone": get_package_version(),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "packages": {package: version for package in _PACKAGES if (version := _version(package)) is not None},
        "system": platform.platform(),
        "processor": {
            "name": name,
            "instruction_sets": instructions,
            "used_by_torch": torch.backends.cpu.get_cpu_capability(),
            "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        },
        "threads": num_threads(),
        "device": describe_device(policy_device(resolved)),
        "git": describe_commit(),
    }


def describe_processor() -> tuple[str, list[str]]:
    """Return the name of the processor and its vector instruction sets."""
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return platform.processor() or platform.machine(), []
    facts = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    flags = {*facts.get("flags", "").split(), *facts.get("Features", "").split()}
    return facts.get("model name", platform.machine()), sorted(f for f in flags if f.startswith(_INSTRUCTION_SETS))


def describe_commit() -> dict[str, Any] | None:
    """Return the git commit of the working directory or of the recipe's folder, or None without one.

    The keys are `folder`, `commit`, `is_dirty` and `changed_files`.
    """
    for folder in dict.fromkeys([str(Path.cwd()), *get_search_paths()]):
        commit = _git(folder, "rev-parse", "HEAD")
        if commit:
            changed = _git(folder, "status", "--porcelain", "--untracked-files=no") or ""
            files = [line[3:] for line in changed.splitlines()]
            root = _git(folder, "rev-parse", "--show-toplevel")
            return {"folder": root, "commit": commit.strip(), "is_dirty": bool(files), "changed_files": files}
    return None


def _git(folder: str, *arguments: str) -> str | None:
    if shutil.which("git") is None:
        return None
    command = ["git", "-C", folder, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeError):
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _last(stored: Mapping[str, Any], name: str) -> Any:
    """Return the latest recorded value of a fact: of the last event that has it, else of the start."""
    events = [event[name] for event in stored.get("events", []) if name in event]
    return events[-1] if events else stored.get(name, {} if name == "modules" else None)


def _key(file: str, now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    return str((now["modules"].get(file) or _last(before, "modules")[file])["key"])


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        return ", ".join(f"{name} {before.get(name, 'absent')} → {now.get(name, 'absent')}" for name in names)
    return f"{before} → {now}"


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _copy_code(run_dir: Path, resolved: Resolved, report: Callable[[str], None]) -> None:
    """Copy the custom code into the run directory if the recipe sets `store_code`.

    Files with secrets are left out, with a report.
    """
    if not resolved.recipe.store_code:
        return
    files = list(find_custom_code(resolved))
    if not files:
        return
    common = Path(os.path.commonpath([file.parent for file in files]))
    for file in files:
        if lines := secret_lines(file):
            problem = f"line {lines[0]} holds a secret, so the file is not copied; read it from an environment variable"
            report(f"store_code: {_short(str(file))}: {problem}")
            continue
        target = run_dir / _CODE / file.relative_to(common)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, file.read_text(encoding="utf-8", errors="replace"), is_private=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
