"""Finds and hashes the custom code of a recipe: named modules and scripts, and their imports from the same folder.

No module is imported: files are found by name and their imports are read from the syntax tree.

Note:
    Installed packages and Whetstone itself are left out; `environment.json` has their versions.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import shlex
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import whetstone
from whetstone.masking import is_secret_key, map_texts, mask_secrets, secret_spans
from whetstone.plugins import get_search_paths
from whetstone.python_syntax import parse_syntax
from whetstone.recipe import Resolved

_NAME = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):[A-Za-z_]\w*")
_INSTALLED = (
    *{str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(whetstone.__file__).parent.resolve()),
)
_MAX_FILES = 1000
_MAX_PARENTS = 5
"""Number of folders, from the run directory upwards, in which moved code is searched for."""


def find_custom_code(resolved: Resolved) -> dict[Path, str]:
    """Find the custom Python files of a recipe.

    Returns:
        File → recipe keys that name the file, or name a file that imports it, separated by commas.
    """
    keys: dict[Path, list[str]] = {}
    imports: dict[tuple[Path, Path], list[tuple[Path, Path]]] = {}
    for key, file, root in _named_files(resolved.recipe.model_dump(mode="json")):
        waiting, seen = [(file, root)], set[Path]()
        while waiting and len(keys) < _MAX_FILES:
            path, folder = waiting.pop(0)
            if path in seen:
                continue
            seen.add(path)
            named = keys.setdefault(path, [])
            if key not in named:
                named.append(key)
            if (path, folder) not in imports:
                imports[path, folder] = list(_imported_files(path, folder))
            waiting += imports[path, folder]
    return {path: ", ".join(named) for path, named in keys.items()}


def digest_custom_code(resolved: Resolved) -> dict[str, dict[str, str]]:
    """Hash the custom Python files of a recipe: by path, the recipe keys (`key`) and the SHA-256 (`sha256`)."""
    return {
        str(path): {"key": key, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path, key in find_custom_code(resolved).items()
    }


def find_moved_folders(run_dir: Path, folders: Sequence[str], modules: Mapping[str, Any]) -> list[Path]:
    """Find the folders of a run's custom code after its files were moved away from their recorded paths.

    A missing file is searched for in the run directory and the folders above it, at its path relative to the folder in
    which the run found it. A file counts as found if its content has the recorded SHA-256.

    Args:
        run_dir: The run directory.
        folders: Folders in which the run searched for modules.
        modules: Same as `digest_custom_code`, when the run started or last resumed.
    """
    near = [run_dir.resolve(), *run_dir.resolve().parents][:_MAX_PARENTS]
    moved: dict[Path, None] = {}
    for path, recorded in modules.items():
        file = Path(path)
        if file.is_file():
            continue
        roots = [root for root in map(Path, folders) if file.is_relative_to(root)]
        relative = file.relative_to(max(roots, key=lambda root: len(root.parts), default=file.parent))
        for folder in near:
            place = folder / relative
            if place.is_file() and hashlib.sha256(place.read_bytes()).hexdigest() == recorded["sha256"]:
                moved[folder] = None
                break
    return list(moved)


def changed_custom_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Compare the custom code of a run with its present files: `edited`, `added` or `removed`, by path.

    Files are compared by path. Files with the same name and digest at different paths count as moved, not as changed.

    Args:
        before: Same as `digest_custom_code`, when the run started.
        now: The files of the recipe now.
    """
    moved = {(Path(path).name, each["sha256"]) for path, each in before.items() if path not in now}
    moved_here = {(Path(path).name, each["sha256"]) for path, each in now.items() if path not in before}
    changed = {path: "edited" for path in now if path in before and now[path]["sha256"] != before[path]["sha256"]}
    changed |= {p: "added" for p in now if p not in before and (Path(p).name, now[p]["sha256"]) not in moved}
    removed = {p: "removed" for p in before if p not in now and (Path(p).name, before[p]["sha256"]) not in moved_here}
    for path in removed:  # a moved file that was edited is one change
        other = next((p for p, how in changed.items() if how == "added" and Path(p).name == Path(path).name), None)
        if other is not None:
            changed[other] = "edited"
        else:
            changed[path] = "removed"
    return changed


def secret_lines(path: Path) -> list[int]:
    """Return the numbers of the lines of a Python file that contain a secret.

    A secret is a key of a known provider, or a text that is assigned to a name such as `api_key`.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if secret_spans(("code",), line) or mask_secrets(line) != line
    }
    for node in _nodes(text):
        for name, value in _named_values(node):
            is_text = isinstance(value, ast.Constant) and isinstance(value.value, str) and len(value.value) > 3
            if is_text and is_secret_key((name,)):
                lines.add(value.lineno)
    return sorted(lines)


def _named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name, value) of an assignment, a keyword argument or the entries of a dictionary."""
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name | ast.Attribute):
                yield target.id if isinstance(target, ast.Name) else target.attr, node.value
    elif isinstance(node, ast.keyword) and node.arg is not None:
        yield node.arg, node.value
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, value


def _named_files(keys: Mapping[str, Any]) -> Iterator[tuple[str, Path, Path]]:
    """Yield (key, file, folder of the modules) of each module and script that a recipe names."""
    named: list[tuple[str, str]] = []

    def note(path: tuple[str, ...], text: str) -> str:
        named.append((".".join(path), text))
        return text

    map_texts(keys, note)
    for key, text in named:
        if match := _NAME.fullmatch(text):
            for folder in dict.fromkeys(
                [*get_search_paths(), str(Path.cwd()), *sys.path, *_installed_at(match["module"])]
            ):
                if (file := _module_file(match["module"], Path(folder))) is not None:
                    yield key, file, Path(folder).resolve()
                    break
        elif ".py" in text and "\n" not in text:
            for word in _words(text):
                if word.endswith(".py") and (file := _own_file(Path(word))) is not None:
                    yield key, file, file.parent


def _installed_at(module: str) -> list[str]:
    """Return the folder of a module that an editable installation finds by other means than `sys.path`."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return []
    if spec is None or not spec.origin:
        return []
    return [str(Path(spec.origin).parents[1 if spec.submodule_search_locations else 0])]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _module_file(module: str, folder: Path) -> Path | None:
    """Return the custom file of a dotted module name below a folder; None if there is none."""
    below = folder.joinpath(*module.split("."))
    for path in (below.with_suffix(".py"), below / "__init__.py"):
        if (file := _own_file(path)) is not None:
            return file
    return None


def _own_file(path: Path) -> Path | None:
    """Return the resolved path of a custom file; None if the file is missing, installed, or part of Whetstone."""
    path = path.resolve()
    is_own = path.is_file() and not any(path.is_relative_to(place) for place in _INSTALLED)
    return path if is_own and "site-packages" not in path.parts else None


def _imported_files(path: Path, root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield (file, folder of the modules) of each custom module that a file imports from its folder or package."""
    own = path.parent
    for parent in path.relative_to(root).parents if path.is_relative_to(root) else ():
        if (root / parent / "__init__.py").is_file() and str(parent) != ".":
            yield root / parent / "__init__.py", root
    for node in _nodes(path.read_text(encoding="utf-8", errors="replace")):
        names: list[str] = []
        places = [root, own]
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                places = [path.parents[node.level - 1]] if len(path.parents) >= node.level else []
            names = [node.module] if node.module else []
            names += [".".join(filter(None, (node.module, alias.name))) for alias in node.names]
        for name in names:
            for place in places:
                file = _module_file(name, place)
                if file is not None and (file.is_relative_to(root) or file.is_relative_to(own)):
                    yield file, root
                    break


def _nodes(text: str) -> Iterator[ast.AST]:
    try:
        yield from ast.walk(parse_syntax(text))
    except (SyntaxError, ValueError, RecursionError):
        return
