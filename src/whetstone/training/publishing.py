"""Folders for the Hugging Face hub: a model, the trajectories of a run, or an environment, and a search for secrets.

A folder is prepared and searched before anything is uploaded. Only the files of the prepared folder are uploaded, never
a whole run directory or project.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import DatasetCard

from whetstone.assembly.environment import build_environment, list_tools
from whetstone.data.redacting import redacted_words
from whetstone.data.sensitive import find_redactor, find_sensitive
from whetstone.errors import DataError, PolicyError, RecipeError, WhetstoneError
from whetstone.masking import known_secrets, map_texts, secret_spans
from whetstone.policies.hub_upload import list_upload_files
from whetstone.recipe import Resolved, load_recipe
from whetstone.recipe.resolve_paths import list_named_files
from whetstone.recipe.yaml_text import yaml_document
from whetstone.record import run_recipe
from whetstone.record.custom_code import find_custom_code
from whetstone.reporting.model_card import license_lines, results_section
from whetstone.reporting.trajectories import read_trajectories
from whetstone.strict_json import to_json
from whetstone.trajectory import Trajectory

ENVIRONMENT_TAG = "rl-environment"
"""Tag of repositories that the hub lists under "RL Environment"."""
TRAJECTORIES = "trajectories.jsonl"
_BINARY = (".safetensors", ".gguf", ".png")
_PERSONAL = frozenset({"e-mail address", "phone number"})
_RECIPE = "recipe.yaml"
_TAGS = ("reinforcement-learning", "agent", "whetstone")


@dataclass(frozen=True, slots=True)
class SecretSearch:
    """Result of the search for secrets in a prepared folder."""

    texts: int
    """Number of text files that were searched."""
    secrets: tuple[tuple[str, int, str], ...] = ()
    """(file, line, kind) of each secret."""
    personal: Mapping[str, int] = field(default_factory=dict)
    """Number of e-mail addresses and phone numbers, by kind."""


def write_trajectory_dataset(run_dir: Path, folder: Path, *, redact: bool = False, license_name: str = "") -> int:
    """Write the scored trajectories of a run as conversations with rewards, with a dataset card.

    `trajectories.jsonl` has one row per trajectory: `id`, `stage`, `step`, `task`, `reward`, `success`, `ended`,
    `messages` in the OpenAI format, and `tools`. Token ids are not written, because they spell redacted texts.

    Args:
        run_dir: Run directory.
        folder: Existing empty folder.
        redact: Whether secrets and personal data in messages are replaced.
        license_name: License of the card; empty: the card has none.

    Returns:
        Number of rows.

    Raises:
        DataError: If the run has no scored trajectory, or redaction needs a package that is not installed.
        RunDirectoryError: If the folder is no run.
    """
    resolved = run_recipe(run_dir)
    replace_texts = find_redactor("sensitive") if redact else None
    try:
        tools = [tool.to_openai() for tool in list_tools(build_environment(resolved))]
    except WhetstoneError:  # such as a tool server that does not run here; messages have the calls
        tools = []
    count = 0
    with open(folder / TRAJECTORIES, "w", encoding="utf-8") as file:
        for stage, step, trajectory in _scored_trajectories(run_dir):
            row = _dataset_row(stage, step, trajectory)
            if replace_texts is not None:
                row["messages"] = redacted_words(row["messages"], replace_texts)
            file.write(to_json(row | {"tools": tools}) + "\n")
            count += 1
    if not count:
        raise DataError(f"{run_dir}: no trajectory has a reward; sample some with a reinforcement stage")
    summary = run_dir / "summary.json"
    results = results_section(json.loads(summary.read_text(encoding="utf-8"))) if summary.is_file() else ""
    recipe = (run_dir / _RECIPE).read_text(encoding="utf-8")
    (folder / "README.md").write_text(
        _card_header(["trajectories"], license_name)
        + f"# Trajectories of {run_dir.resolve().name}\n\n"
        + f"{count} trajectories of {resolved.name}, sampled in training with Whetstone. `{TRAJECTORIES}` has one row "
        "per trajectory.\n\n| column | content |\n| --- | --- |\n"
        "| `id`, `task` | trajectory, and task that it tries |\n"
        "| `stage`, `step` | stage of the run, and its step |\n"
        "| `reward`, `success` | score, and whether the task was solved |\n"
        "| `ended` | reason why the episode ended |\n"
        "| `messages`, `tools` | conversation and tools in the OpenAI format |\n\n"
        f"{results}\n## Recipe\n\n```yaml\n{recipe.strip()}\n```\n",
        encoding="utf-8",
    )
    return count


def write_environment(recipe: Path, folder: Path, *, license_name: str = "") -> list[str]:
    """Write the files of a recipe with its own code, tasks and data, with a card that has the tag "RL Environment".

    The files are the recipe, the Python modules that it names with their imports, and the input files that it names.
    All must be in the folder of the recipe.

    Args:
        recipe: Recipe file, or a folder with `recipe.yaml`.
        folder: Existing empty folder.
        license_name: License of the card; empty: that of the folder's own card, if any.

    Returns:
        Paths of the files, relative to the folder.

    Raises:
        RecipeError: If the recipe is not a file, or names a file outside of its folder.
    """
    path = recipe / _RECIPE if recipe.is_dir() else recipe
    if not path.is_file():
        raise RecipeError(
            f"{recipe}: no recipe file; name a YAML file or a folder with {_RECIPE}, as `whetstone new environment` "
            "writes it"
        )
    root = path.parent.resolve()
    resolved = load_recipe(path)
    named: dict[Path, str] = {file.resolve(): f"code of {key}" for file, key in find_custom_code(resolved).items()}
    named |= _input_files(path)
    for file, key in named.items():
        if not file.is_relative_to(root):
            raise RecipeError(
                f"{path}: {key} is {file}, outside of the folder of the recipe; move it into {root}, so that the "
                "environment is complete"
            )
    for file in named:
        target = folder / file.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    shutil.copyfile(path, folder / _RECIPE)
    for name in ("LICENSE", "README.md"):
        if (root / name).is_file():
            shutil.copyfile(root / name, folder / name)
    _tag_environment(folder / "README.md", resolved, license_name)
    return list_upload_files(folder)


def search_secrets(folder: Path) -> SecretSearch:
    """Search all text files of a folder for secrets and personal data.

    Found are keys of providers and private keys, values of secrets that recipes of this process use, and literal
    secrets at keys of `recipe.yaml` such as `api_key`.

    Args:
        folder: Prepared folder.
    """
    secrets: list[tuple[str, int, str]] = []
    personal: Counter[str] = Counter()
    texts = 0
    values = [value for value in known_secrets() if len(value) > 5]
    for name in list_upload_files(folder):
        if name.endswith(_BINARY):
            continue
        try:
            text = (folder / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        texts += 1
        for number, line in enumerate(text.split("\n"), 1):
            secrets += [(name, number, "secret of a recipe") for value in values if value in line]
        for span in find_sensitive(text):
            if span.kind in _PERSONAL:
                personal[span.kind] += 1
            else:
                secrets.append((name, text.count("\n", 0, span.start) + 1, span.kind))
        if name == _RECIPE:
            secrets += [(name, _line_of(text, key), f"secret at {key}") for key in _literal_secrets(text, name)]
    places = {(name, line): (name, line, kind) for name, line, kind in reversed(secrets)}  # one kind per line
    return SecretSearch(texts, tuple(sorted(places.values())), dict(personal))


def refuse_secrets(search: SecretSearch, *, remedy: str) -> None:
    """Refuse a folder that contains secrets; the message names file, line and kind, never the value.

    Args:
        search: Result of `search_secrets`.
        remedy: What to do.

    Raises:
        PolicyError: If there is a secret.
    """
    if not search.secrets:
        return
    name, line, kind = search.secrets[0]
    more = f" (and {len(search.secrets) - 1} more places)" if len(search.secrets) > 1 else ""
    raise PolicyError(f"{name}:{line}: contains a secret ({kind}){more}; nothing was uploaded; {remedy}")


def _scored_trajectories(run_dir: Path) -> Iterator[tuple[str, int, Trajectory]]:
    """Yield (stage, step, trajectory) of scored trajectories that were sampled in training."""
    folders = [run_dir, *sorted((run_dir / "stages").glob("*"))]
    for folder in folders:
        stage = "" if folder == run_dir else folder.name
        for path in sorted((folder / "trajectories").glob("step-*.jsonl")):
            step = int(path.stem.partition("-")[2])
            for trajectory in read_trajectories(path, may_be_incomplete=True):
                if trajectory.score is not None:
                    yield stage, step, trajectory


def _dataset_row(stage: str, step: int, trajectory: Trajectory) -> dict[str, Any]:
    score = trajectory.score
    return {
        "id": trajectory.id,
        "stage": stage,
        "step": step,
        "task": trajectory.task_id,
        "reward": None if score is None else score.value,
        "success": None if score is None else score.success,
        "ended": str(trajectory.ended),
        "messages": [message.to_openai() for message in trajectory.messages],
    }


def _card_header(tags: Sequence[str], license_name: str) -> str:
    lines = ["---", *license_lines(license_name)]
    lines += [f"tags: [{', '.join([*_TAGS, *tags])}]", "configs:", "- config_name: default"]
    return "\n".join([*lines, f"  data_files: {TRAJECTORIES}", "---", "", ""])


def _tag_environment(path: Path, resolved: Resolved, license_name: str) -> None:
    """Add the tags to the card of an environment, which is written if there is none."""
    if not path.is_file():
        title = resolved.recipe.title or resolved.name
        path.write_text(f"# {title}\n\nAn environment for Whetstone.\n", encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    card: Any = DatasetCard(text if text.startswith("---") else f"---\ntags: []\n---\n{text}")
    card.data["tags"] = list(dict.fromkeys([*(card.data.get("tags") or ()), ENVIRONMENT_TAG, *_TAGS]))
    for line in license_lines(license_name):
        key, _, value = line.partition(": ")
        card.data[key] = value.strip('"')
    if "whetstone train" not in card.text:
        card.text += "\n\n```console\n$ whetstone train recipe.yaml\n```\n"
    path.write_text(str(card), encoding="utf-8")


def _input_files(recipe: Path) -> dict[Path, str]:
    """Return the input files of a recipe file, and the recipe files that it extends with theirs: file → key.

    Raises:
        RecipeError: If a path is absolute.
    """
    root = recipe.parent.resolve()
    keys = yaml_document(recipe.read_text(encoding="utf-8"), str(recipe), plain=True)
    extended = keys.get("extends") or [] if isinstance(keys, dict) else []
    layers = [extended] if isinstance(extended, str) else extended
    named: dict[Path, str] = {}
    for name in layers:
        layer = (root / str(name)).resolve()
        if layer.is_file():
            named |= {layer: "extends"} | _input_files(layer)
    for key, file in list_named_files(keys):
        if file.expanduser().is_absolute():
            raise RecipeError(f"{recipe}: {key} is an absolute path ({file}); write it relative to the recipe")
        named |= dict.fromkeys(_files_of((root / file).resolve()), key)
    return named


def _files_of(place: Path) -> list[Path]:
    """Return a file, the files of a folder without hidden ones, or nothing if there is no such place."""
    if place.is_file():
        return [place]
    if not place.is_dir():
        return []
    files = (path for path in place.rglob("*") if path.is_file())
    return [path.resolve() for path in files if not any(part[0] == "." for part in path.relative_to(place).parts)]


def _literal_secrets(text: str, name: str) -> list[str]:
    keys: list[str] = []

    def note(path: tuple[str, ...], value: str) -> str:
        keys.extend([".".join(path)] if secret_spans(path, value) else [])
        return value

    map_texts(yaml_document(text, name, plain=True), note)
    return keys


def _line_of(text: str, key: str) -> int:
    """Return the number of the first line that contains the last part of a dotted key."""
    last = next((part for part in reversed(key.split(".")) if not part.isdecimal()), key)
    return next((number for number, line in enumerate(text.split("\n"), 1) if f"{last}:" in line), 1)
