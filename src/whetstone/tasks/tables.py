"""Rows of Parquet files, and of datasets of Hugging Face in a folder, by split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from whetstone.errors import RecipeError, TaskError
from whetstone.optional_dependencies import install_command


def parquet_rows(path: Path, training: str, held_out: str) -> dict[str, list[Mapping[str, Any]]]:
    """Read the rows of a Parquet file, or of a folder of Parquet files, by split.

    A file belongs to the split that its name starts with. If no name starts with `training` and `held_out` is empty,
    all files are the split `training`.

    Args:
        path: The file or folder.
        training: Name of the training split.
        held_out: Name of the held-out split; empty: none.

    Raises:
        TaskError: If the file does not exist or cannot be read.
        RecipeError: If `pyarrow` is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError:
        raise RecipeError(f"tasks: Parquet needs pyarrow; install it with: {install_command('datasets')}") from None
    if not path.exists():
        raise TaskError(f"{path}: no such file or folder")
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise TaskError(f"{path}: the folder has no .parquet file")
    is_named = any(file.name.startswith(training) for file in files) or bool(held_out)
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for file in files:
        name = next((s for s in (training, held_out) if s and file.name.startswith(s)), "" if is_named else training)
        if not name:
            continue
        try:
            rows.setdefault(name, []).extend(pyarrow.parquet.read_table(file).to_pylist())
        except Exception as error:  # pyarrow raises its own errors, and those of Python for values it cannot convert
            raise TaskError(f"{file}: {type(error).__name__}: {str(error).partition(chr(10))[0][:160]}") from None
    return rows


def dataset_rows(path: Path, training: str) -> Mapping[str, Iterable[Mapping[str, Any]]]:
    """Read the rows of a Hugging Face dataset in a folder, by split.

    Nothing is downloaded.

    Args:
        path: Folder as `save_to_disk` writes it, or in the layout of the hub.
        training: Name of the split of a dataset without splits.

    Raises:
        TaskError: If the folder does not exist or cannot be read.
        RecipeError: If `datasets` is not installed.
    """
    try:
        import datasets
    except ImportError:
        raise RecipeError(
            f"tasks: a dataset needs the package `datasets`; install it with: {install_command('datasets')}"
        ) from None
    if not path.is_dir():
        raise TaskError(f"{path}: no such folder; download the dataset first, since nothing is fetched")
    try:
        is_saved = (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()
        dataset = datasets.load_from_disk(str(path)) if is_saved else datasets.load_dataset(str(path))
    except Exception as error:  # the library raises the errors of its readers
        raise TaskError(f"{path}: {type(error).__name__}: {str(error).partition(chr(10))[0][:160]}") from None
    return dict(dataset) if isinstance(dataset, dict) else {training: dataset}
