"""Parser files for vLLM parse calls as in training, without Whetstone; named parsers exist in vLLM."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from whetstone.chat import FORMATS, ToolCall, ToolSpec, assistant
from whetstone.chat.served_parsers import PARSER_FILE, SGLANG_PARSERS, VLLM_PARSERS, write_parser_file

TOOLS = [
    ToolSpec("search", "Searches.", {"type": "object", "properties": {"query": {"type": "string"}}}),
    ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}),
]
WITHOUT_PARSER = sorted({*FORMATS} - {*VLLM_PARSERS})
VLLM_PYTHON = os.environ.get("WHETSTONE_VLLM_PYTHON", "")
needs_vllm = pytest.mark.skipif(
    not VLLM_PYTHON, reason="needs vLLM: set WHETSTONE_VLLM_PYTHON to an interpreter with `pip install vllm`"
)
_READ = """
import json, re, sys
from pathlib import Path
folder = Path(sys.argv[1])
source = (folder / "vllm_tool_parser.py").read_text()
module, kind = re.search(r"from whetstone_calls\\.(\\w+) import (\\w+)", source).groups()
built = re.search(r"^FORMAT = (.*)$", source, re.MULTILINE)[1]
sys.path.insert(0, str(folder))
space = {}
exec(f"from whetstone_calls.{module} import {kind}\\nfrom whetstone_calls.chat_message import ToolSpec", space)
format = eval(built, space)
tools = [space["ToolSpec"](**each) for each in json.loads(sys.argv[3])]
message = format.read(sys.argv[2], tools)
assert "whetstone" not in sys.modules
print(json.dumps([message.text, [[call.name, json.loads(call.arguments)] for call in message.tool_calls]]))
"""
_SERVED = """
import json, sys
from pathlib import Path
from unittest.mock import MagicMock
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers import ToolParserManager
ToolParserManager.import_tool_parser(str(Path(sys.argv[1]) / "vllm_tool_parser.py"))
kind = ToolParserManager.get_tool_parser("whetstone")
tools = [{"type": "function", "function": each} for each in json.loads(sys.argv[3])]
request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=tools)
whole = kind(MagicMock(), request.tools).extract_tool_calls(sys.argv[2], request)
streaming, text, calls = kind(MagicMock(), request.tools), "", []
for end in range(1, len(sys.argv[2]) + 1):
    before, after = sys.argv[2][: end - 1], sys.argv[2][:end]
    delta = streaming.extract_tool_calls_streaming(before, after, after[-1], [], [], [], request)
    if delta is not None:
        text += delta.content or ""
        calls += [(call.function.name, json.loads(call.function.arguments)) for call in delta.tool_calls]
found = [(call.function.name, json.loads(call.function.arguments)) for call in whole.tool_calls]
print(json.dumps({"text": whole.content, "calls": found, "streamed": [text, calls]}))
"""


def arguments():
    return json.dumps([{"name": t.name, "description": t.description, "parameters": t.parameters} for t in TOOLS])


def written(format):
    """Return a turn with the calls that the format writes, and the calls that it reads."""
    calls = [ToolCall("search", '{"query": "big cats"}'), ToolCall("add", '{"a": 1, "b": 2}')]
    for text, chosen in (("Let me see. ", calls), ("Let me see. ", calls[:1]), ("", calls), ("", calls[:1])):
        try:
            turn = format.write(assistant(text, *chosen), TOOLS)
            return turn, [[call.name, json.loads(call.arguments)] for call in format.read(turn, TOOLS).tool_calls]
        except ValueError:
            continue
    raise AssertionError("the format writes no call")


@pytest.mark.parametrize("name", WITHOUT_PARSER)
def test_the_parser_file_of_a_format_parses_its_calls_without_whetstone(tmp_path, name):
    format = FORMATS[name]()
    text, calls = written(format)
    assert write_parser_file(tmp_path, name, format) == tmp_path / PARSER_FILE
    compile((tmp_path / PARSER_FILE).read_text(), PARSER_FILE, "exec")
    if name != WITHOUT_PARSER[0] and name not in ("compact", "tags"):
        return  # the rest differs in the arguments of one class, which this process can read, too
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _READ, str(tmp_path), text, arguments()], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    read = format.read(text, TOOLS)
    assert json.loads(done.stdout) == [read.text, calls]


def test_named_parsers_are_those_of_known_formats():
    assert {*VLLM_PARSERS, *SGLANG_PARSERS} <= {*FORMATS}
    assert VLLM_PARSERS["hermes"] == SGLANG_PARSERS["hermes"] == "hermes"
    assert not {"compact", "tags", "react", "code"} & {*VLLM_PARSERS, *SGLANG_PARSERS}


@needs_vllm
@pytest.mark.slow
@pytest.mark.parametrize("name", ["compact", "tags", "react", "code"])
def test_vllm_loads_the_parser_file_and_parses_whole_and_streamed_turns(tmp_path, name):
    format = FORMATS[name]()
    text, calls = written(format)
    write_parser_file(tmp_path, name, format)
    done = subprocess.run(
        [VLLM_PYTHON, "-c", _SERVED, str(tmp_path), text, arguments()], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    parsed = json.loads(done.stdout.splitlines()[-1])
    assert parsed["calls"] == parsed["streamed"][1] == calls
    assert parsed["streamed"][0].strip() == (parsed["text"] or "").strip() == format.read(text, TOOLS).text.strip()


@needs_vllm
@pytest.mark.slow
def test_every_named_parser_of_vllm_exists():
    script = (
        "import json; from vllm.tool_parsers import ToolParserManager as M; print(json.dumps(list(M.lazy_parsers)))"
    )
    done = subprocess.run([VLLM_PYTHON, "-c", script], capture_output=True, text=True, timeout=300)
    assert {*VLLM_PARSERS.values()} <= {*json.loads(done.stdout.splitlines()[-1])}


def test_a_parser_file_names_no_path_of_this_machine(tmp_path):
    write_parser_file(tmp_path, "compact", FORMATS["compact"]())
    for file in tmp_path.rglob("*.py"):
        assert str(Path.home()) not in file.read_text()
        assert "from whetstone." not in file.read_text()
