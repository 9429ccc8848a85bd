"""Tool-call parsers of vLLM and SGLang for a tool-call format, and a parser file for vLLM if there is none.

The parser file (`vllm serve … --tool-parser-plugin FILE`) imports copies of the modules that parse calls in training,
which are written next to it, so the environment of vLLM does not need Whetstone.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from whetstone.chat.protocol import ToolCallFormat

VLLM_PARSERS: Mapping[str, str] = {
    "apertus": "apertus",
    "deepseek_v3": "deepseek_v3",
    "deepseek_v31": "deepseek_v31",
    "deepseek_v32": "deepseek_v32",
    "deepseek_v4": "deepseek_v4",
    "dots": "dots",
    "functiongemma": "functiongemma",
    "gemma4": "gemma4",
    "gigachat31": "gigachat3",
    "glm": "glm45",
    "granite": "granite",
    "granite20b": "granite-20b-fc",
    "granite31": "granite",
    "harmony": "openai",
    "hermes": "hermes",
    "hy_v3": "hy_v3",
    "hy_v4": "hy_v4",
    "internlm2": "internlm",
    "kimi_k2": "kimi_k2",
    "kimi_k3": "kimi_k3",
    "lfm2": "lfm2",
    "llama3": "llama3_json",
    "llama4": "llama4_pythonic",
    "longcat": "longcat",
    "minicpm": "minicpm5",
    "minimax_m2": "minimax_m2",
    "minimax_m3": "minimax_m3",
    "mistral": "mistral",
    "muse": "muse_glimmer",
    "olmo3": "olmo3",
    "phi4_mini": "phi4_mini_json",
    "plamo3": "plamo3",
    "qwen3_coder": "qwen3_coder",
    "seed": "seed_oss",
    "step3": "step3",
    "tool_calls": "hunyuan_a13b",
    "xlam": "xlam",
}
"""`--tool-call-parser` of vLLM by format; names of vLLM 0.32."""
SGLANG_PARSERS: Mapping[str, str] = {
    "apertus": "apertus2509",
    "deepseek_v3": "deepseekv3",
    "deepseek_v31": "deepseekv31",
    "deepseek_v32": "deepseekv32",
    "deepseek_v4": "deepseekv4",
    "dots": "dots",
    "gemma4": "gemma4",
    "gigachat31": "gigachat3",
    "gigachat35": "gigachat35",
    "glm": "glm45",
    "harmony": "gpt-oss",
    "hermes": "hermes",
    "internlm2": "interns1",
    "kimi_k2": "kimi_k2",
    "kimi_k3": "kimi_k3",
    "lfm2": "lfm2",
    "llama3": "llama3",
    "llama4": "pythonic",
    "minicpm": "minicpm5",
    "minimax_m2": "minimax-m2",
    "minimax_m3": "minimax-m3",
    "mistral": "mistral",
    "muse": "muse",
    "qwen3_coder": "qwen3_coder",
    "step3": "step3",
}
"""`--tool-call-parser` of SGLang by format."""
PARSER_FILE = "vllm_tool_parser.py"
_PACKAGE = "whetstone_calls"
_PLUGIN = '''"""vLLM tool parser for the calls of this model (format: {name}), as they are parsed in training.

vllm serve FOLDER --enable-auto-tool-choice --tool-parser-plugin FOLDER/vllm_tool_parser.py --tool-call-parser whetstone
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from vllm.tool_parsers import ToolParser, ToolParserManager
from whetstone_calls.{module} import {kind}
from whetstone_calls.chat_message import ToolSpec

try:
    from vllm.entrypoints.generate.base import protocol
except ImportError:  # vLLM before 0.30
    from vllm.entrypoints.openai import protocol

FORMAT = {kind}({arguments})


@ToolParserManager.register_module("whetstone")
class WhetstoneToolParser(ToolParser):
    """Parses complete calls; a streamed call is sent when it is complete."""

    supports_required_and_named = False

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.sent_characters = 0

    def adjust_request(self, request):
        """Keep markers of calls in the text, and stop where training stops."""
        if request.tools:
            request.skip_special_tokens = False
            if FORMAT.stops and hasattr(request, "stop"):
                stops = [request.stop] if isinstance(request.stop, str) else list(request.stop or [])
                request.stop = [*stops, *FORMAT.stops]
                request.include_stop_str_in_output = True
        return request

    def extract_tool_calls(self, model_output, request):
        """Parse the calls of a complete turn."""
        message = FORMAT.read(model_output, _specs(request))
        if not message.tool_calls:
            return protocol.ExtractedToolCallInformation(tools_called=False, tool_calls=[], content=model_output)
        calls = [
            protocol.ToolCall(function=protocol.FunctionCall(name=call.name, arguments=call.arguments))
            for call in message.tool_calls
        ]
        return protocol.ExtractedToolCallInformation(tools_called=True, tool_calls=calls, content=message.text or None)

    def extract_tool_calls_streaming(
        self, previous_text, current_text, delta_text, previous_token_ids, current_token_ids, delta_token_ids, request
    ):
        """Return new text before the first marker, and calls that are complete."""
        end = _safe_length(current_text, request)
        content = current_text[self.sent_characters : end] or None
        self.sent_characters = max(self.sent_characters, end)
        sent = len(self.prev_tool_call_arr)
        new = _complete_calls(current_text, request)[sent:] if end < len(current_text) else ()
        calls = []
        for index, call in enumerate(new, start=sent):
            function = protocol.DeltaFunctionCall(name=call.name, arguments=call.arguments)
            calls.append(protocol.DeltaToolCall(index=index, type="function", function=function))
            self.prev_tool_call_arr.append({{"name": call.name, "arguments": call.arguments}})
            self.streamed_args_for_tool.append(call.arguments)
            self.current_tool_id = index
        if content is None and not calls:
            return None
        return protocol.DeltaMessage(content=content, tool_calls=calls)


def _specs(request):
    return [
        ToolSpec(tool.function.name, tool.function.description or "", tool.function.parameters or {{}})
        for tool in request.tools or []
    ]


def _complete_calls(text, request):
    """Return the calls that no further text can change: their JSON is complete, or they are read again after more."""
    specs = _specs(request)
    calls, later = FORMAT.read(text, specs).tool_calls, FORMAT.read(text + "\\nx", specs).tool_calls
    return [
        call for index, call in enumerate(calls) if call.arguments in text or later[index : index + 1] == (call,)
    ]


def _safe_length(text, request):
    """Return the length of the text that cannot be a part of a call."""
    markers = [*FORMAT.markers, *(f"<{{tool.name}}>" for tool in _specs(request))]
    found = [place for marker in markers if (place := text.find(marker)) >= 0]
    if found:
        return min(found)
    partial = [size for marker in markers for size in range(1, len(marker)) if text.endswith(marker[:size])]
    return len(text) - max(partial, default=0)
'''


def write_parser_file(folder: Path, name: str, format: ToolCallFormat) -> Path:
    """Write a parser file for vLLM into a folder, and the modules it imports into `whetstone_calls`.

    Args:
        name: Name of the format.

    Returns:
        The file.
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
    text = _PLUGIN.format(name=name, module=_flat(kind.__module__), kind=kind.__name__, arguments=arguments)
    (folder / PARSER_FILE).write_text(text, encoding="utf-8")
    return folder / PARSER_FILE


def _flat(module: str) -> str:
    return module.removeprefix("whetstone.").replace(".", "_")
