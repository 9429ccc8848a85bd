"""Tool-call formats of model families as a table of options, each as the family's template writes calls.

A family that needs more than options has a module: Hermes and Qwen (`hermes`), Llama 3, Mistral, gpt-oss (`harmony`),
Functionary, Gemma and MiniMax-M3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from whetstone.chat.formats.functionary import Functionary
from whetstone.chat.formats.gemma import Gemma
from whetstone.chat.formats.json_block import JsonBlock
from whetstone.chat.formats.named_json import NamedJson
from whetstone.chat.formats.pythonic import Pythonic
from whetstone.chat.formats.xml_parameters import Parameters
from whetstone.chat.protocol import ToolCallFormat

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DSML = Parameters(
    '<｜DSML｜invoke name="{name}">\n{parameters}</｜DSML｜invoke>',
    '<｜DSML｜parameter name="{key}" string="{type}">{value}</｜DSML｜parameter>\n',
    types="text",
    reserved=("<｜DSML｜", "</｜DSML｜"),
)

FAMILIES: Mapping[str, Callable[[], ToolCallFormat]] = {
    "apertus": partial(JsonBlock, "<|tools_prefix|>", "<|tools_suffix|>", name=""),
    "command_r": partial(JsonBlock, "<|START_ACTION|>", "<|END_ACTION|>", name="tool_name", arguments="parameters"),
    "command_r_plus": partial(JsonBlock, "Action:\n```json\n", "\n```", name="tool_name", arguments="parameters"),
    "deepseek_v3": partial(
        NamedJson,
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
        between="\n",
        begin=_BEGIN,
        end=_END,
    ),
    "deepseek_v31": partial(
        NamedJson, "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>", begin=_BEGIN, end=_END
    ),
    "deepseek_v32": partial(replace, _DSML, begin="<｜DSML｜function_calls>\n", end="\n</｜DSML｜function_calls>"),
    "deepseek_v4": partial(replace, _DSML, begin="<｜DSML｜tool_calls>\n", end="\n</｜DSML｜tool_calls>"),
    "firefunction": partial(JsonBlock, "functools"),
    "functionary_v31": partial(NamedJson, "<function={name}>{arguments}</function>"),
    "functionary_v32": Functionary,
    "functiongemma": partial(Gemma, "<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma4": partial(Gemma, "<|tool_call>", "<tool_call|>", '<|"|>'),
    "gigachat": partial(
        JsonBlock,
        "function call<|role_sep|>\n",
        layout="lines",
        also=("<|message_sep|>\n\nfunction call<|role_sep|>",),
    ),
    "gigachat31": partial(JsonBlock, "<|function_call|>", layout="lines"),
    "glm": partial(
        Parameters,
        "<tool_call>{name}\n{parameters}</tool_call>",
        "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
    ),
    "granite": partial(JsonBlock, "<|tool_call|>"),
    "hunyuan": partial(
        Parameters,
        "<tool_call:opensource>{name}<tool_sep:opensource>\n{parameters}</tool_call:opensource>",
        "<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>{value}</arg_value:opensource>\n",
        "<tool_calls:opensource>\n",
        "\n</tool_calls:opensource>",
    ),
    "kimi_k2": partial(
        NamedJson,
        "<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        prefix="functions.",
    ),
    "kimi_k3": partial(
        Parameters,
        '<|open|>call tool="{name}" index="{index}"<|sep|>{parameters}<|close|>call<|sep|>',
        '<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>',
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
        between="",
        reserved=("<|open|>tools", "<|open|>call", "<|open|>argument", "<|close|>call", "<|close|>tools"),
        frame=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        escaped=True,
    ),
    "minicpm": partial(
        Parameters,
        '<function name="{name}">{parameters}</function>',
        '<param name="{key}">{value}</param>',
        wrapper=("<![CDATA[", "]]>"),
        nulls=("null", "None"),
    ),
    "minimax_m2": partial(
        Parameters,
        '<invoke name="{name}">\n{parameters}</invoke>',
        '<parameter name="{key}">{value}</parameter>\n',
        "<minimax:tool_call>\n",
        "\n</minimax:tool_call>",
    ),
    "muse": partial(
        Parameters,
        '<atem:invoke name="{name}">\n{parameters}</atem:invoke>',
        '<atem:parameter name="{key}">{value}</atem:parameter>\n',
        "<atem:function_calls>\n",
        "\n</atem:function_calls>",
        addressed=r"(?:<\|eom\|><\|start\|>assistant\s*)?to=\S{1,256}?<\|message\|>",
    ),
    "nemotron": partial(JsonBlock, "<TOOLCALL>", "</TOOLCALL>"),
    "phi4_mini": partial(JsonBlock, "<|tool_call|>", "<|/tool_call|>"),
    "qwen3_coder": partial(
        Parameters,
        "<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>",
        "<parameter={key}>\n{value}\n</parameter>\n",
        nulls=("null", "None"),
    ),
    "seed": partial(
        Parameters,
        "<seed:tool_call>\n<function={name}>\n{parameters}</function>\n</seed:tool_call>",
        "<parameter={key}>{value}</parameter>\n",
        nulls=("null", "None"),
    ),
    "solar": partial(
        NamedJson,
        "<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>",
        "<|tool_calls|>",
    ),
    "tool_calls": partial(JsonBlock, "<tool_calls>", "</tool_calls>"),
    "dots": partial(
        Parameters,
        '<invoke name="{name}">{parameters}</invoke>',
        '<parameter name="{key}">{value}</parameter>',
        "<dots_function_call>",
        "</dots_function_call>",
        between="",
    ),
    "gigachat35": partial(
        Parameters,
        '<｜GCML｜invoke name="{name}">{parameters}</｜GCML｜invoke>',
        '<｜GCML｜parameter name="{key}" string="{type}">{value}</｜GCML｜parameter>',
        "<｜GCML｜tool_calls>",
        "</｜GCML｜tool_calls>",
        between="",
        types="text",
    ),
    "granite20b": partial(JsonBlock, "<function_call> ", layout="blocks"),
    "granite31": partial(JsonBlock, "<tool_call>", also=("<|tool_call|>",)),
    "hy_v3": partial(
        Parameters,
        "<tool_call>{name}<tool_sep>\n{parameters}</tool_call>",
        "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
        "<tool_calls>\n",
        "\n</tool_calls>",
    ),
    "hy_v4": partial(
        Parameters,
        "<tool_call:opensource>{name}{parameters}</tool_call:opensource>",
        "<arg_key:opensource>{key}</arg_key:opensource><arg_value:opensource>{value}</arg_value:opensource>",
        "<tool_calls:opensource>",
        "</tool_calls:opensource>",
        between="",
    ),
    "internlm2": partial(
        JsonBlock, "<|action_start|><|plugin|>", "<|action_end|>", arguments="parameters", layout="blocks"
    ),
    "lfm25": partial(Pythonic, is_raw=True),
    "llama4": partial(Pythonic, "", "", optional=("<|python_start|>", "<|python_end|>")),
    "longcat": partial(JsonBlock, "<longcat_tool_call>", "</longcat_tool_call>", layout="blocks"),
    "olmo3": partial(Pythonic, "<function_calls>", "</function_calls>", layout="lines"),
    "plamo3": partial(
        NamedJson,
        "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
        "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{arguments}"
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
        "<|plamo:begin_tool_requests:plamo|>",
        "<|plamo:end_tool_requests:plamo|>",
        tail="<|plamo:tag|>",
        must_close=True,
    ),
    "rwkv": partial(JsonBlock, "**Tool Call:**\n```json\n", "\n```", layout="blocks"),
    "solar_open2": partial(
        Parameters,
        "<|tool_call:start|>{name}\n{parameters}<|tool_call:end|>",
        "<|tool_arg:start|>{key}<|tool_arg:value|>{value}<|tool_arg:end|>\n",
        whole_markers=True,
    ),
    "step3": partial(
        Parameters,
        '<steptml:invoke name="{name}">{parameters}</steptml:invoke><｜tool_call_end｜>',
        '<steptml:parameter name="{key}">{value}</steptml:parameter>',
        "<｜tool_calls_begin｜>",
        "<｜tool_calls_end｜>",
        between="<｜tool_sep｜>",
        prefix="<｜tool_call_begin｜>function<｜tool_sep｜>{name}\n",
        addressed=r"(?:<｜tool_sep｜>\s*)?<｜tool_call_begin｜>(?:function<｜tool_sep｜>[^\s<]*)?",
    ),
    "xlam": partial(JsonBlock, "", also=("[TOOL_CALLS]", "<tool_call>", "```json"), closings=("</tool_call>", "```")),
}
