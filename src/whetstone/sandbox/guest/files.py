"""File tools that run inside the sandbox, so that no path and no link leads outside; called by name by the host."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator

_MAX_MATCHES, _MAX_ENTRIES, _MAX_FILE_BYTES, _MAX_LISTED = 200, 500, 4 << 20, 5000
_SEARCH_SECONDS = 5.0


class FolderError(Exception):
    """Failure of a file tool, with a text that the model reads."""


def view_path(path: str, first: int, last: int) -> str:
    """Return lines of a file with their numbers, or the entries of a folder.

    Args:
        path: File or folder.
        first: Number of the first line, from 1.
        last: Number of the last line; -1: the end.

    Raises:
        FolderError: If the path does not exist, is not text, or does not have these lines.
    """
    if os.path.isdir(path):
        return _list_folder(path)
    lines = _lines(path)
    end = len(lines) if last == -1 else min(last, len(lines))
    if first < 1 or (end < first and lines):
        raise FolderError(f"{path} has {len(lines)} lines, and {first} to {last} are none of them")
    return "\n".join(f"{number:6}\t{lines[number - 1]}" for number in range(first, end + 1)) or f"{path} is empty"


def create_file(path: str, text: str) -> str:
    """Write a file, or replace an existing one; return a confirmation."""
    if folder := os.path.dirname(path):
        os.makedirs(folder, exist_ok=True)
    replaced = os.path.exists(path)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return f"{'replaced' if replaced else 'created'} {path}"


def str_replace(path: str, old: str, new: str) -> str:
    """Replace a text that must occur exactly once in a file.

    Return the lines around the new text.

    Raises:
        FolderError: If `old` does not occur exactly once.
    """
    text = _text(path)
    count = text.count(old) if old else 0
    if count != 1:
        lines = (
            [str(text[: match.start()].count("\n") + 1) for match in re.finditer(re.escape(old), text)] if old else []
        )
        where = f", in lines {', '.join(lines[:20])}" if lines else ""
        raise FolderError(f"the text to replace must be in {path} exactly once, and is there {count} times{where}")
    at = text.index(old)
    changed = text[:at] + new + text[at + len(old) :]
    with open(path, "w", encoding="utf-8") as file:
        file.write(changed)
    line = text[:at].count("\n") + 1
    return view_path(path, max(1, line - 3), min(changed.count("\n") + 1, line + new.count("\n") + 3))


def grep(pattern: str, path: str) -> str:
    """Return every line that matches a regular expression as `file:number:line`, in a file or below a folder.

    At most 200 lines are returned, and the search ends after five seconds.

    Raises:
        FolderError: If the expression is invalid, or the path does not exist.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise FolderError(f"{pattern!r} is no regular expression: {error}") from None
    matches: list[str] = []
    deadline = time.monotonic() + _SEARCH_SECONDS
    for name in _files(path):
        if time.monotonic() > deadline:
            matches.append("[… the time for searching is over …]")
            break
        try:
            lines = _lines(name)
        except (FolderError, OSError):
            continue  # not a text file
        matches += [f"{name}:{number}:{line}" for number, line in enumerate(lines, 1) if expression.search(line)]
        if len(matches) > _MAX_MATCHES:
            matches[_MAX_MATCHES:] = ["[… more matches left out …]"]
            break
    return "\n".join(matches) or "no match"


def list_entries(path: str) -> str:
    """Return all entries below a folder as JSON: path → `file`, `folder`, `link` or `other`.

    Hidden, empty and unreadable entries are included; links are not followed.

    Raises:
        FolderError: If an entry cannot be read, or there are more than 5000 entries.
    """
    kinds_by_path: dict[str, str] = {}
    pending = [path]
    while pending:
        try:
            entries = sorted(os.scandir(pending.pop()), key=lambda entry: entry.name)
            for entry in entries:
                mode = entry.stat(follow_symlinks=False).st_mode
                kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISLNK, "link"))
                kind = next((kind for is_one, kind in kinds if is_one(mode)), "other")
                kinds_by_path[os.path.relpath(entry.path, path)] = kind
                if kind == "folder":
                    pending.append(entry.path)
        except OSError as error:
            raise FolderError(f"not all of {path} can be looked at: {error.strerror}") from None
        if len(kinds_by_path) > _MAX_LISTED:
            raise FolderError(f"there are more than {_MAX_LISTED} things in {path}")
    return json.dumps(kinds_by_path)


def _lines(path: str) -> list[str]:
    """Return the lines of a file; only a line feed ends a line, not U+2028 or a form feed."""
    text = _text(path)
    return re.split("\r?\n", re.sub("\r?\n\\Z", "", text)) if text else []


def _text(path: str) -> str:
    if os.path.isdir(path):
        raise FolderError(f"{path} is a folder")
    if not os.path.exists(path):
        raise FolderError(f"there is no {path}")
    if not os.path.isfile(path):
        raise FolderError(f"{path} is no file")
    with open(path, "rb") as file:
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise FolderError(f"{path} has more than {_MAX_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FolderError(f"{path} is no text") from None


def _list_folder(path: str) -> str:
    entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    names = [f"{e.name}/" if e.is_dir(follow_symlinks=False) else e.name for e in entries[:_MAX_ENTRIES]]
    if len(entries) > _MAX_ENTRIES:
        names.append(f"[… {len(entries) - _MAX_ENTRIES} more …]")
    return "\n".join(names) or f"{path} is empty"


def _files(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise FolderError(f"there is no {path}")
        yield path
        return
    for parent, folders, names in os.walk(path):
        folders.sort()
        yield from (os.path.normpath(os.path.join(parent, name)) for name in sorted(names))
