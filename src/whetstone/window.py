"""How does a room offer its names without loading what they stand on? Each is imported when it is first asked for.

    if TYPE_CHECKING:
        from whetstone.tools.toolset import Toolset

    __getattr__, __dir__ = window(__name__)
    __all__ = ["Toolset"]

The imports a type checker reads are those that are made (PEP 562), so they stand there once.

Easy to get wrong: a name that is also a file of the room would be the file once somebody has imported that, and the
object before. A test refuses such names.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def window(room: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that imports its names under `if TYPE_CHECKING`.

    Args:
        room: The package's `__name__`.
    """
    package = sys.modules[room]
    places = _places(Path(str(package.__file__)))

    def __getattr__(name: str) -> Any:
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
    """Pause the garbage collector: searching the objects that an import creates takes a fifth of its time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _places(path: Path) -> dict[str, str]:
    """By name, the module it is imported from."""
    checked = (node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.If))
    imports = (each for node in checked for each in node.body if isinstance(each, ast.ImportFrom))
    return {alias.name: str(each.module) for each in imports for alias in each.names}
