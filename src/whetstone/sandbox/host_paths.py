"""Removal of paths and object addresses of this machine from text that a model reads.

The folder of this machine's Python in a traceback, or the address of an object in its `repr`, differs between machines
or processes. A model that reads it samples different tokens from the same seed, and training gives different weights.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig

_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,16}(?=>)")
_SHARED_PREFIXES = {"/", "/usr", "/usr/local"}
"""Installation prefixes that contain more than Python and exist on every machine."""


def remove_host_paths(text: str, *, user_folders: bool = False) -> str:
    """Replace paths of this machine's Python, and addresses of objects, in a text for the model.

    A path in the standard library or among installed packages becomes relative to it; any other path in the Python
    installation or its virtual environment starts with `<python>`.

    Args:
        text: Output or error of a tool.
        user_folders: Whether paths in the current folder become relative, and the home folder `~`; for errors of code
            that runs on the host.

    Returns:
        Text that is the same for the same call on every machine.

    Example:
        >>> remove_host_paths("<function f at 0x7f3a5c0b1e40>")
        '<function f at 0x…>'
        >>> remove_host_paths(f'File "{sysconfig.get_path("stdlib")}/ast.py"')
        'File "ast.py"'
    """
    if "/" in text:
        folders = _python_folders()
        if user_folders:
            folders += ((os.getcwd(), "", "."), (os.path.expanduser("~"), "~/", "~"))
        pattern, names = _compiled(folders)
        text = pattern.sub(lambda match: names[match[1]][0 if match[2] else 1], text)
    return _ADDRESS.sub("at 0x…", text) if " at 0x" in text else text


@functools.cache
def _python_folders() -> tuple[tuple[str, str, str], ...]:
    """Return (folder, replacement of a path in it, replacement of the folder itself) for each folder of this Python."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    # Debian's folders on every machine: a text that names one must not depend on which Python the machine has
    libraries = [f"/usr/lib/{version}", f"/usr/local/lib/{version}"]
    libraries += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    libraries += [f"{prefix}/lib/{version}" for prefix in (sys.base_prefix, sys.base_exec_prefix)]
    libraries += [f"{library}/site-packages" for library in libraries]
    prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix} - _SHARED_PREFIXES
    named = [(path, "", "<python>/lib") for path in libraries]
    named += [(path, "<python>/", "<python>") for path in sorted(prefixes)]
    real = [(os.path.realpath(path), start, name) for path, start, name in named]
    return tuple(dict.fromkeys([*named, *real]))


@functools.lru_cache(maxsize=8)
def _compiled(folders: tuple[tuple[str, str, str], ...]) -> tuple[re.Pattern[str], dict[str, tuple[str, str]]]:
    """Return a pattern that matches the folders, longest first, and the replacements of each folder."""
    names: dict[str, tuple[str, str]] = {}
    for path, start, name in folders:
        if path.startswith("/") and path.rstrip("/"):
            names.setdefault(path.rstrip("/"), (start, name))
    paths = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.compile(rf"(?<![\w./-])({paths})(?:(/)|(?![\w.-]))"), names
