"""Runs vLLM's own tool parsers on cases; `tool_call_cases.py --vllm-python` starts it in an interpreter that has vLLM.

Reads a list of cases from standard input. Writes one JSON object to the last line of standard output: the version of
vLLM, the outcome (content, calls, error) by case id, and the families for which vLLM has no parser.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import sys
from collections.abc import Mapping
from typing import Any
from unittest.mock import MagicMock

PARSERS: Mapping[str, tuple[str, ...]] = {
    "apertus": ("apertus",),
    "deepseek_v3": ("deepseek_v3",),
    "deepseek_v31": ("deepseek_v31",),
    "deepseek_v32": ("deepseek_v32",),
    "deepseek_v4": ("deepseek_v4",),
    "dots": ("dots",),
    "firefunction": ("phi4_mini_json",),
    "functiongemma": ("functiongemma",),
    "gemma4": ("gemma4",),
    "gigachat": ("gigachat3",),
    "gigachat31": ("gigachat3",),
    "gigachat35": ("gigachat35",),
    "glm": ("glm45",),
    "granite": ("granite",),
    "granite20b": ("granite-20b-fc",),
    "granite31": ("granite",),
    "hermes": ("hermes",),
    "hunyuan": ("hy_v3",),
    "hy_v3": ("hy_v3",),
    "hy_v4": ("hy_v4",),
    "internlm2": ("internlm",),
    "kimi_k2": ("kimi_k2",),
    "kimi_k3": ("kimi_k3",),
    "lfm2": ("lfm2",),
    "llama3": ("llama3_json",),
    "llama4": ("llama4_pythonic",),
    "longcat": ("longcat",),
    "minicpm": ("minicpm5",),
    "minimax_m2": ("minimax_m2",),
    "minimax_m3": ("minimax_m3",),
    "mistral": ("mistral",),
    "muse": ("muse_glimmer",),
    "nemotron": ("nemotron_json",),
    "olmo3": ("olmo3",),
    "plamo3": ("plamo3",),
    "qwen3_coder": ("qwen3_coder",),
    "rwkv": ("rwkv",),
    "seed": ("seed_oss",),
    "solar_open2": ("solar_open2",),
    "step3": ("step3",),
    "tool_calls": ("hunyuan_a13b",),
    "xlam": ("xlam",),
}
"""Names of vLLM's parsers of a family; the first that this version has is used."""
SUITES: Mapping[str, tuple[str, ...]] = {
    "test_ernie45_moe_tool_parser.py": ("ernie45",),
    "test_glm47_moe_tool_parser.py": ("glm47",),
    "test_glm47_moe_detector.py": ("glm47",),
    "test_granite4_tool_parser.py": ("granite4",),
    "test_intern_s1_tool_parser.py": ("intern-s1",),
    "test_jamba_tool_parser.py": ("jamba",),
    "test_minimax_tool_parser.py": ("minimax",),
    "test_poolside_v1_tool_parser.py": ("poolside_v1",),
    "test_pythonic_tool_parser.py": ("pythonic",),
    "test_step3p5_tool_parser.py": ("step3p5",),
}
"""The same for files of tests that use another parser than their family."""
_TOKEN = re.compile(r"</?[^\s<>\"'(){}=]+(?: [a-z]+)?>|\[/?[A-Z_]+\]|functools|<\|[^\s<>]*\|>")


class Vocabulary(dict[str, int]):
    """Token ids of special tokens; one that looks like a special token gets an id when it is requested."""

    absent: tuple[str, ...] = ()

    def get(self, token: str, default: Any = None) -> Any:
        """Return the id of a token, or the default if the text is no special token."""
        if token not in self and token not in self.absent and isinstance(token, str) and _TOKEN.fullmatch(token):
            self[token] = len(self) + 1
        return super().get(token, default)

    def __missing__(self, token: str) -> int:
        self[token] = len(self) + 1
        return self[token]


class StubTokenizer(MagicMock):
    """Tokenizer with the special tokens of a text and one token for every other character."""

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Define the methods that parsers call."""
        by_id: dict[int, str] = {}
        base = 100_000

        def encode(text: str, *_: Any, **__: Any) -> list[int]:
            ids = []
            place = 0
            names = sorted(vocabulary, key=len, reverse=True)
            while place < len(text):
                token = next((name for name in names if text.startswith(name, place)), text[place])
                ids.append(vocabulary[token] if token in vocabulary else base + ord(token))
                by_id[ids[-1]] = token
                place += len(token)
            return ids

        def decode(ids: Any, *_: Any, **__: Any) -> str:
            listed = ids if isinstance(ids, list | tuple) else [ids]
            names = {number: name for name, number in vocabulary.items()}
            return "".join(names.get(one) or by_id.get(one) or chr(one - base) for one in listed)

        self.get_vocab.side_effect = lambda: vocabulary
        self.vocab = vocabulary
        self.encode.side_effect = encode
        self.decode.side_effect = decode
        self.tokenize.side_effect = lambda text, *_, **__: [decode(one) for one in encode(text)]
        self.convert_tokens_to_ids.side_effect = lambda token: vocabulary.get(token)
        self.all_special_tokens = list(vocabulary)


def parse_case(case: Mapping[str, Any], parser_class: Any, request_class: Any) -> dict[str, Any]:
    """Return the result of a parser of vLLM on a case."""
    end = case.get("thought_end", "")
    text = case["text"].partition(end)[2] if end else case["text"]
    fields = {"model": "stub", "messages": [{"role": "user", "content": "x"}]}
    request = request_class(**fields, **({"tools": case["tools"], "tool_choice": "auto"} if case["tools"] else {}))
    vocabulary = Vocabulary()
    is_old = "pre_v11" in case["source"].get("test", "")
    if not is_old and re.search(r"\[TOOL_CALLS\]\s*[^\s\[]", text):  # the newer of the two formats of Mistral
        vocabulary["[ARGS]"] = 1
    else:
        vocabulary.absent = ("[ARGS]",)
    for token in _TOKEN.findall(text):
        vocabulary.get(token)
    tokenizer = StubTokenizer()
    tokenizer.use_vocabulary(vocabulary)
    tokenizer.init_kwargs = {"token_suffix": ":opensource"} if "<tool_calls:opensource>" in text else {}
    try:
        parser = parser_class(tokenizer, tools=request.tools)
    except TypeError:
        parser = parser_class(tokenizer)
    result = parser.extract_tool_calls(text, request)
    calls = [{"name": call.function.name, "arguments": call.function.arguments} for call in result.tool_calls]
    return {"content": result.content or "", "calls": calls, "error": ""}


def find_parser(manager: Any, names: tuple[str, ...]) -> Any:
    """Return the first parser class of these names that this version has, or None."""
    for name in names:
        with contextlib.suppress(KeyError, ValueError, ImportError, ModuleNotFoundError):
            return manager.get_tool_parser(name)
    return None


def main() -> int:
    """Run the parsers over the cases on standard input."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    version = importlib.import_module("vllm").__version__  # after the level of its log is set
    request_class = importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol").ChatCompletionRequest
    manager = importlib.import_module("vllm.tool_parsers").ToolParserManager

    cases = json.load(sys.stdin)
    outcomes: dict[str, Any] = {}
    families = {case["family"] for case in cases}
    parsers: dict[tuple[str, ...], Any] = {}
    for case in cases:
        file = case["source"]["file"].rsplit("/", 1)[-1]
        names = SUITES.get(file) or PARSERS.get(case["family"], ())
        if names not in parsers:
            parsers[names] = find_parser(manager, names)
        if parsers[names] is None:
            continue
        families.discard(case["family"])
        try:
            outcomes[case["id"]] = parse_case(case, parsers[names], request_class)
        except Exception as error:  # a parser that raises is a result
            outcomes[case["id"]] = {"content": "", "calls": [], "error": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps({"version": version, "outcomes": outcomes, "missing": sorted(families)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
