"""Looking at and changing files, done where foreign code runs, so that no path and no link leads out of there."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator

_MOST_MATCHES, _MOST_ENTRIES, _MOST_FILE_BYTES, _MOST_LISTED = 200, 500, 4 << 20, 5000
_SEARCH_SECONDS = 5.0


class FolderError(Exception):
    """Asked for something that is not there, or not as it was taken to be; a model reads the text."""


def view(path: str, first: int, last: int) -> str:
    """A file's lines with their numbers, from `first` to `last` (-1: the end); of a folder what is in it."""
    if os.path.isdir(path):
        return _listing(path)
    lines = _lines(path)
    end = len(lines) if last == -1 else min(last, len(lines))
    if first < 1 or (end < first and lines):
        raise FolderError(f"{path} has {len(lines)} lines, and {first} to {last} are none of them")
    return "\n".join(f"{number:6}\t{lines[number - 1]}" for number in range(first, end + 1)) or f"{path} is empty"


def create(path: str, text: str) -> str:
    """Write a file, in place of any that is there."""
    if folder := os.path.dirname(path):
        os.makedirs(folder, exist_ok=True)
    replaced = os.path.exists(path)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return f"{'replaced' if replaced else 'created'} {path}"


def str_replace(path: str, old: str, new: str) -> str:
    """Put `new` where `old` stands, which must be in exactly one place; what is around it afterwards."""
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
    return view(path, max(1, line - 3), min(changed.count("\n") + 1, line + new.count("\n") + 3))


def grep(pattern: str, path: str) -> str:
    """Every line that matches, as `file:number:line`, in a file or in all below a folder."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise FolderError(f"{pattern!r} is no regular expression: {error}") from None
    found: list[str] = []
    until = time.monotonic() + _SEARCH_SECONDS
    for name in _files(path):
        if time.monotonic() > until:
            found.append("[… the time for searching is over …]")
            break
        try:
            lines = _lines(name)
        except (FolderError, OSError):
            continue  # no text
        found += [f"{name}:{number}:{line}" for number, line in enumerate(lines, 1) if wanted.search(line)]
        if len(found) > _MOST_MATCHES:
            found[_MOST_MATCHES:] = ["[… more matches left out …]"]
            break
    return "\n".join(found) or "no match"


def listing(path: str) -> str:
    """All there is below a folder, hidden and empty and unreadable things among it, as JSON: path → `file`, `folder`,
    `link` or `other`. Links are not followed.

    Raises:
        FolderError: Some of it cannot be looked at, or there is more than anybody reads: then nothing is said.
    """
    found: dict[str, str] = {}
    left = [path]
    while left:
        try:
            entries = sorted(os.scandir(left.pop()), key=lambda entry: entry.name)
            for entry in entries:
                mode = entry.stat(follow_symlinks=False).st_mode
                kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISLNK, "link"))
                kind = next((kind for is_one, kind in kinds if is_one(mode)), "other")
                found[os.path.relpath(entry.path, path)] = kind
                if kind == "folder":
                    left.append(entry.path)
        except OSError as error:
            raise FolderError(f"not all of {path} can be looked at: {error.strerror}") from None
        if len(found) > _MOST_LISTED:
            raise FolderError(f"there are more than {_MOST_LISTED} things in {path}")
    return json.dumps(found)


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
        data = file.read(_MOST_FILE_BYTES + 1)
    if len(data) > _MOST_FILE_BYTES:
        raise FolderError(f"{path} has more than {_MOST_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FolderError(f"{path} is no text") from None


def _listing(path: str) -> str:
    entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    shown = [f"{e.name}/" if e.is_dir(follow_symlinks=False) else e.name for e in entries[:_MOST_ENTRIES]]
    if len(entries) > _MOST_ENTRIES:
        shown.append(f"[… {len(entries) - _MOST_ENTRIES} more …]")
    return "\n".join(shown) or f"{path} is empty"


def _files(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise FolderError(f"there is no {path}")
        yield path
        return
    for parent, folders, names in os.walk(path):
        folders.sort()
        yield from (os.path.normpath(os.path.join(parent, name)) for name in sorted(names))
