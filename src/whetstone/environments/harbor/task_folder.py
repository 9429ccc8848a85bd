"""Reader of Harbor task folders: `task.toml`, `instruction.md`, `environment/`, `tests/` and `solution/`.

A task with several steps has an instruction, tests and a solution in `steps/NAME/` for each. The format is that of
Harbor 0.26. Keys that Whetstone does not support make a folder unplayable, with a reason; keys
that Harbor itself ignores are ignored.

Note:
    Benchmarks mark their files with a canary string, so that they are found in training data. Such a folder is only for
    evaluation.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from whetstone.errors import RecipeError, TaskError

SOLUTION = "/solution"
_CANARY = re.compile(r"canary[\s_-]*(?:guid|string)|benchmark data should never appear in training", re.IGNORECASE)
_CANARY_LINE = re.compile(r"^(?:<!--.*canary.*-->|#.*canary.*)$", re.IGNORECASE)
_FETCHES = re.compile(
    r"\b(?:curl|wget|git\s+clone|uvx|npx|apt(?:-get)?\s+(?:-\S+\s+)*(?:update|install)|apk\s+add|"
    r"(?:uv\s+)?pip3?\s+install|uv\s+(?:add|sync|run)|npm\s+(?:i|install|ci)|cargo\s+(?:install|fetch)|go\s+(?:get|install))\b"
)
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_MAX_SCANNED_BYTES = 1 << 20
_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class HarborStep:
    """One step of a task. A task without `[[steps]]` has one, whose name is empty."""

    name: str
    path: Path
    """Folder with the instruction: `steps/NAME`, or that of the task."""
    instruction: str
    """Prompt, without canary lines."""
    tests: tuple[Path, ...]
    """Folders with tests; files of a later one replace those of an earlier one."""
    solution: Path
    """Folder with the solution: that of the step, or else that of the task."""
    agent_seconds: float
    """Time limit of the agent, which the solution has, too."""
    agent_user: str
    verifier_seconds: float
    verifier_user: str
    verifier_variables: Mapping[str, str]
    min_rewards: Mapping[str, float]
    """Rewards by name below which no later step is played."""
    healthcheck: Mapping[str, Any]
    """Command that must succeed before the step, with its intervals."""

    @property
    def solution_script(self) -> Path | None:
        """Return the script of the solution; None if there is none."""
        script = self.solution / "solve.sh"
        return script if script.is_file() else None

    @property
    def workdir_files(self) -> Path | None:
        """Return the folder whose files are copied to the working directory before the step; None if there is none."""
        folder = self.path / "workdir"
        return folder if self.name and folder.is_dir() else None


@dataclass(frozen=True, slots=True)
class HarborFolder:
    """A task folder."""

    path: Path
    steps: tuple[HarborStep, ...]
    reward_strategy: Literal["mean", "final"]
    """Reward of several steps: the mean of the played ones, or that of the last one played."""
    image: str
    """Name of a prebuilt image; "" if `environment/Dockerfile` builds one."""
    cpus: float
    memory_mb: int
    storage_mb: int
    workdir: str
    """Folder in which commands start; "" for that of the image."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of all commands, as templates."""
    healthcheck: Mapping[str, Any] = field(default_factory=dict)
    """Command that must succeed before the episode, with its intervals."""
    solution_variables: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    """Reasons why it cannot be played."""
    canary: str = ""
    """File with a canary string; "" if there is none."""
    fetches: tuple[str, ...] = ()
    """Files with commands that request a network."""

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return self.path.name

    @property
    def build_folder(self) -> Path:
        """Return the folder from which the image is built."""
        return self.path / "environment"


def find_folders(path: Path) -> list[Path]:
    """Return the task folders of a folder, which may be one itself, in the order of their names.

    Raises:
        TaskError: There is none.
    """
    if (path / "task.toml").is_file():
        return [path]
    folders = sorted({file.parent for depth in ("*", "*/*", "*/*/*") for file in path.glob(f"{depth}/task.toml")})
    if not folders:
        old = next(path.glob("**/task.yaml"), None) if path.is_dir() else None
        hint = f"; {old} is of Terminal-Bench 1: convert it to the format of Harbor" if old else ""
        raise TaskError(f"{path}: no folder with a task.toml{hint}")
    return folders


def read_folder(path: Path) -> HarborFolder:
    """Read a task folder.

    Raises:
        TaskError: `task.toml` is missing, is not TOML, or has a value of another type.
    """
    file = path / "task.toml"
    try:
        config = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TaskError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise TaskError(f"{file}: {error}") from None
    try:
        return _folder(path, config)
    except (TypeError, ValueError, AttributeError) as error:
        raise TaskError(f"{file}: a value is of another type than in the format of Harbor: {error}") from None


def _folder(path: Path, config: Mapping[str, Any]) -> HarborFolder:
    environment, solution = config.get("environment", {}), config.get("solution", {})
    image = environment.get("docker_image") or ""
    steps = tuple(_read_steps(path, config))
    strategy: Any = config.get("multi_step_reward_strategy") or "mean"
    if strategy not in ("mean", "final"):
        raise ValueError(f"multi_step_reward_strategy = {strategy!r}")
    return HarborFolder(
        path=path,
        steps=steps,
        reward_strategy=strategy,
        image=image,
        cpus=float(environment.get("cpus") or 1),
        memory_mb=_megabytes(environment, "memory", 2048),
        storage_mb=_megabytes(environment, "storage", 10240),
        workdir=environment.get("workdir") or "",
        variables=dict(environment.get("env", {})),
        healthcheck=dict(environment.get("healthcheck") or {}),
        solution_variables=dict(solution.get("env", {})),
        metadata=dict(config.get("metadata", {})),
        problems=tuple(_problems(path, config, steps=steps, image=image)),
        canary=next((str(file.relative_to(path)) for file in _text_files(path) if _CANARY.search(_read(file))), ""),
        fetches=tuple(
            str(file.relative_to(path))
            for file in _text_files(path)
            if file.suffix in (".sh", "") and _FETCHES.search(_read(file))
        ),
    )


def _read_steps(path: Path, config: Mapping[str, Any]) -> Iterator[HarborStep]:
    """Yield the steps of a task; values that a step does not have are those of the task.

    Raises:
        ValueError: The name of a step is not that of a folder, or two have the same name.
    """
    tables = config.get("steps") or [{}]
    names = [str(table.get("name", "")) for table in tables] if config.get("steps") else [""]
    for name in names:
        if config.get("steps") and (not name.strip() or name in (".", "..") or set(name) & {"/", "\\"}):
            raise ValueError(f"the name of a step is not that of a folder: {name!r}")
    if len({name.casefold() for name in names}) < len(names):
        raise ValueError(f"two steps have one name: {', '.join(names)}")
    agent, verifier = config.get("agent", {}), config.get("verifier", {})
    for name, table in zip(names, tables, strict=True):
        of_agent, of_verifier = ({**agent, **table.get("agent", {})}, {**verifier, **table.get("verifier", {})})
        place = path / "steps" / name if name else path
        instruction = place / "instruction.md"
        minimum = table.get("min_reward")
        yield HarborStep(
            name=name,
            path=place,
            instruction=_strip_canary(instruction.read_text(encoding="utf-8")) if instruction.is_file() else "",
            tests=tuple(folder for folder in dict.fromkeys((path / "tests", place / "tests")) if folder.is_dir()),
            solution=next(
                (each for each in (place / "solution", path / "solution") if each.is_dir()), path / "solution"
            ),
            agent_seconds=float(of_agent.get("timeout_sec") or _SECONDS),
            agent_user=_user(of_agent),
            verifier_seconds=float(of_verifier.get("timeout_sec") or _SECONDS),
            verifier_user=_user(of_verifier),
            verifier_variables={**verifier.get("env", {}), **table.get("verifier", {}).get("env", {})},
            min_rewards=(
                {name: float(value) for name, value in minimum.items()}
                if isinstance(minimum, Mapping)
                else {}
                if minimum is None
                else {"reward": float(minimum)}
            ),
            healthcheck=dict(table.get("healthcheck") or {}),
        )


def _user(part: Mapping[str, Any]) -> str:
    return str(part["user"]) if part.get("user") is not None else ""


def _problems(path: Path, config: Mapping[str, Any], *, steps: Sequence[HarborStep], image: str) -> Iterator[str]:
    """Yield reasons why a folder cannot be played."""
    environment, verifier = config.get("environment", {}), config.get("verifier", {})
    for step in steps:
        place = f"steps/{step.name}/" if step.name else ""
        if not step.instruction.strip():
            yield f"{place}instruction.md is missing or empty"
        if not any((folder / "test.sh").is_file() for folder in step.tests):
            yield f"it has no tests: {place}tests/test.sh is missing"
    if not image and not (path / "environment" / "Dockerfile").is_file():
        yield "it has neither docker_image nor environment/Dockerfile"
    for file in (path / "environment" / f"docker-compose.{end}" for end in ("yaml", "yml")):
        if file.is_file():
            yield f"it needs several containers (docker-compose{_describe_services(file)}), which are not supported"
    if str(environment.get("os", "linux")).lower() != "linux":
        yield f"it needs {environment['os']}"
    if environment.get("gpus") or environment.get("tpu"):
        yield "it needs an accelerator in its container, which is not supported"
    if environment.get("mcp_servers"):
        yield "it needs MCP servers, which are not supported in a container"
    tables = config.get("steps") or ()
    verifiers = [verifier, *(table.get("verifier", {}) for table in tables)]
    agents = [config.get("agent", {}), *(table.get("agent", {}) for table in tables)]
    if "allowlist" in {part.get("network_mode") for part in (environment, *verifiers, *agents)}:
        yield "it needs a list of permitted hosts, which is not supported"
    if any(each.get("environment") or each.get("environment_mode") == "separate" for each in verifiers):
        yield "its verifier has another image, which is not supported"
    if any(each.get("collect") for each in verifiers):
        yield "its verifier has collect hooks, which are not supported"
    for place in (environment, *verifiers, config.get("solution", {})):
        for name, value in place.get("env", {}).items():
            if missing := [match[1] for match in _VARIABLE.finditer(str(value)) if _value(match) is None]:
                yield f"it needs the environment variable {missing[0]} of this machine (for {name})"


def _describe_services(file: Path) -> str:
    """Return the services of a compose file, as `: db, main`; empty if they cannot be read."""
    try:
        services = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))["services"]
        return f": {', '.join(sorted(map(str, services)))}" if services else ""
    except (YAMLError, KeyError, TypeError, ValueError):
        return ""


def resolve_variables(templates: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables with `${NAME}` and `${NAME:-default}` replaced by those of this machine.

    Raises:
        RecipeError: One is not set and has no default.
    """

    def replaced(match: re.Match[str]) -> str:
        value = _value(match)
        if value is None:
            raise RecipeError(f"environment variable {match[1]} is not set; a task needs it")
        return value

    return {name: _VARIABLE.sub(replaced, str(template)) for name, template in templates.items()}


def _value(match: re.Match[str]) -> str | None:
    return os.environ.get(match[1], match[2])


def _megabytes(environment: Mapping[str, Any], key: str, default: int) -> int:
    """Return a size in MB: `memory_mb = 512`, or `memory = "512M"` of older folders."""
    if (value := environment.get(f"{key}_mb")) is not None:
        return int(value)
    if (text := environment.get(key)) is None:
        return default
    number, unit = str(text).strip()[:-1], str(text).strip()[-1:].upper()
    if unit not in "GMK":
        raise ValueError(f"{key} = {text!r}")
    return int(float(number) * {"G": 1024, "M": 1, "K": 1 / 1024}[unit])


def _text_files(path: Path) -> Iterator[Path]:
    """Yield the files that may have a canary string or fetch something."""
    for name in ("task.toml", "instruction.md"):
        if (path / name).is_file():
            yield path / name
    for folder in ("environment", "tests", "solution", "steps"):
        for file in sorted((path / folder).rglob("*")):
            if file.is_file() and not file.is_symlink() and file.stat().st_size <= _MAX_SCANNED_BYTES:
                yield file


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def _strip_canary(text: str) -> str:
    """Remove canary lines and blank lines from the start of an instruction, as Harbor does."""
    lines = text.splitlines(keepends=True)
    while lines and (_CANARY_LINE.match(lines[0].strip()) or not lines[0].strip()):
        del lines[0]
    return "".join(lines)
