"""Lazy exports of a package: a module is imported when one of its names is first used.

    if TYPE_CHECKING:
        from whetstone.tools.toolset import Toolset as Toolset

    __getattr__, __dir__ = export_lazily(__name__)

The imports under `if TYPE_CHECKING` are the ones that are made (PEP 562), and `__all__` has their names.

Note:
    If an exported name were also a module of the package, it would be the module after the import of that module, and
    the exported object before. A test rejects such names.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from whetstone.renamed_modules import renamed_export


def export_lazily(room: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Export the names that a package imports under `if TYPE_CHECKING`, and set its `__all__`.

    A name of an earlier release warns, and returns the renamed object.

    Args:
        room: The package's `__name__`.

    Returns:
        `__getattr__` and `__dir__` of the package.
    """
    package = sys.modules[room]
    places = _places(Path(str(package.__file__)))
    package.__dict__["__all__"] = sorted(places)

    def __getattr__(name: str) -> Any:
        if new := renamed_export(room, name) if name not in places else None:
            warnings.warn(f"{room}.{name} was renamed to {room}.{new}", DeprecationWarning, stacklevel=2)
            return getattr(package, new)
        if name not in places:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        with _garbage_collection_paused():
            module = importlib.import_module(places[name])
        setattr(package, name, getattr(module, name))
        return getattr(module, name)

    def __dir__() -> list[str]:
        return sorted({*vars(package), *places})

    return __getattr__, __dir__


@contextlib.contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pause the garbage collector, which would take a fifth of the time of an import."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _places(path: Path) -> dict[str, str]:
    """Return the module of each name that the package's `__init__.py` exports."""
    checked = (node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.If))
    imports = (each for node in checked for each in node.body if isinstance(each, ast.ImportFrom))
    return {alias.name: str(each.module) for each in imports for alias in each.names}
