"""`whetstone doctor`: what this machine offers, and what to install for the rest."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
import torch

from whetstone.inference import rows_are_summed_alike


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Look at this machine: processors, packages, programs, disk; and say what is missing for what."""
    found = examine()
    if as_json:
        click.echo(json.dumps(found))
        return
    for area, facts in found.items():
        click.secho(area, bold=True)
        for name, fact in facts.items():
            click.echo(f"  {name:<16} {fact}")


def examine() -> dict[str, dict[str, Any]]:
    """Facts by area."""
    return {
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(terse=True),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gib": _memory_gib(),
            "disk_free_gib": round(shutil.disk_usage(Path.cwd()).free / 2**30, 1),
        },
        "accelerator": {
            "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none; the CPU is used",
            "torch_threads": torch.get_num_threads(),
            "repeatable": "bit for bit whatever the batch" if rows_are_summed_alike() else "up to rounding",
        },
        "packages": {name: _package(name) for name in ("torch", "transformers", "tokenizers", "numpy")},
        "optional": {
            "vllm": _package("vllm", "an engine for GPUs: pip install vllm"),
            "ray": _package("ray", "more than one machine: pip install ray"),
            "bubblewrap": _program("bwrap", "isolation of untrusted code: apt-get install bubblewrap"),
            "chromium": _program("chromium", "browser environments: apt-get install chromium chromium-driver"),
            "java": _program("java", "ScienceWorld: apt-get install default-jre-headless"),
        },
    }


def _memory_gib() -> float | str:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return "unknown"


def _package(name: str, otherwise: str = "missing") -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return f"not installed ({otherwise})" if otherwise != "missing" else otherwise


def _program(name: str, otherwise: str) -> str:
    path = shutil.which(name)
    if path is None:
        return f"not installed ({otherwise})"
    try:
        asked = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return path
    return next(iter((asked.stdout or asked.stderr).splitlines()), path)
