"""Tool-call parsers of vLLM and SGLang for a tool-call format, and a parser file for vLLM if it has none.

The parser file (`vllm serve … --tool-parser-plugin FILE`) imports copies of the modules that parse calls in training.
The copies are written next to it, so the environment of vLLM does not need Whetstone.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from whetstone.chat.protocol import ToolCallFormat

_PARSERS = tomllib.loads((files(__package__) / "served_parsers.toml").read_text("utf-8"))
VLLM_PARSERS: Mapping[str, str] = _PARSERS["vllm"]
"""Value of vLLM's `--tool-call-parser` by tool-call format."""
SGLANG_PARSERS: Mapping[str, str] = _PARSERS["sglang"]
"""Value of SGLang's `--tool-call-parser` by tool-call format."""
PARSER_FILE = "vllm_tool_parser.py"
"""Name of the parser file for vLLM in the folder of an exported model."""
_PACKAGE = "whetstone_calls"
_PLUGIN = Template((files(__package__) / "vllm_tool_parser.py.txt").read_text("utf-8"))


def write_parser_file(folder: Path, name: str, format: ToolCallFormat) -> Path:
    """Write a vLLM parser file for a tool-call format, and copies of the modules that it imports.

    The copies are in the subfolder `whetstone_calls`.

    Args:
        folder: Folder of the exported model.
        name: Name under which vLLM registers the parser.
        format: Tool-call format that parses the calls.

    Returns:
        Path of the parser file.
    """
    kind = type(format)
    package = folder / _PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text('"""Parser of tool calls, from Whetstone."""\n', encoding="utf-8")
    copied: set[str] = set()
    pending = [kind.__module__]
    while pending:
        module = pending.pop()
        if module in copied:
            continue
        copied.add(module)
        source = inspect.getsource(importlib.import_module(module))
        used = [
            str(node.module)
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("whetstone.")
        ]
        for each in sorted(used, key=len, reverse=True):
            source = source.replace(f"from {each} import", f"from {_PACKAGE}.{_flat(each)} import")
        pending += used
        (package / f"{_flat(module)}.py").write_text(source, encoding="utf-8")
    options: dict[str, Any] = {}
    if is_dataclass(format):
        options = {field.name: getattr(format, field.name) for field in fields(format)}
    arguments = ", ".join(f"{key}={value!r}" for key, value in options.items())
    text = _PLUGIN.substitute(name=name, module=_flat(kind.__module__), kind=kind.__name__, arguments=arguments)
    (folder / PARSER_FILE).write_text(text, encoding="utf-8")
    return folder / PARSER_FILE


def _flat(module: str) -> str:
    return module.removeprefix("whetstone.").replace(".", "_")
