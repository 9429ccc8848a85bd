"""Any request gets a response or an error in the format of its API; the server itself never fails."""

import asyncio
import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from support.served_policy import TOOL, Scripted, Served, build_assembly
from whetstone.chat.api.completion_routes import ROUTES
from whetstone.inference import Generation

PATHS = [*ROUTES, "messages/count_tokens"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.sampled_from(["", "hi", "\ud800", "user", "assistant", "tool", "auto", "none", "required", "function", "c"]),
)
ANY = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))
KEYS = ["role", "content", "type", "text", "name", "id", "call_id", "tool_use_id", "input", "arguments", "output",
        "function", "tool_calls", "tool_call_id", "parameters", "input_schema", "source", "schema", "format", "tools",
        "image_url", "url", "data", "media_type", "mode"]  # fmt: skip
KINDS = ["text", "message", "function", "function_call", "function_call_output", "tool_use", "tool_result", "image",
         "input_text", "output_text", "image_url", "base64", "enabled", "tool", "any", "allowed_tools",
         "json_schema", "custom", "reasoning", "thinking"]  # fmt: skip
OBJECT = st.recursive(
    SCALARS | st.sampled_from(KINDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=8,
)
FIELDS = [
    "messages", "input", "prompt", "tools", "tool_choice", "system", "instructions", "max_tokens", "temperature",
    "top_p", "top_k", "stop", "stop_sequences", "seed", "n", "logprobs", "top_logprobs", "logit_bias", "text",
    "response_format", "stream", "stream_options", "include", "previous_response_id", "store", "thinking",
    "parallel_tool_calls", "metadata", "best_of", "output_config", "frequency_penalty", "max_output_tokens",
]  # fmt: skip
GOOD = {
    "chat/completions": {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]},
    "completions": {"prompt": "hi"},
    "responses": {"input": "hi", "tools": [{"type": "function", **TOOL["function"]}]},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "tools": [{"name": "add"}]},
    "messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
}
UNREADABLE = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": "2 and 3"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "no"},
]
BODIES = st.dictionaries(st.sampled_from(FIELDS), ANY | OBJECT, max_size=4)


class Brief(Scripted):
    """An engine that always makes one call with arguments that are not JSON."""

    async def generate(self, request):
        sampling = request.sampling
        ids = self.chat.encode('<tool_call>\n{"name": "add", "arguments": {"a": NaN}}\n</tool_call>')
        ids = ids[: sampling.max_new_tokens]
        nothing = (0.0,) * len(ids)
        tops = tuple({token: -0.5} for token in ids) if sampling.top_logprobs else ()
        return Generation(ids, (-0.5,) * len(ids), nothing, (7,) * len(ids), "stop", 0.0, nothing, tops)


@pytest.fixture(scope="module")
def served():
    assembly = build_assembly()
    return Served(assembly, engine=Brief(assembly))


def sent(served, path, body):
    async def work():
        async with served.http() as http:  # exceptions of the server are raised here, also in the middle of a stream
            return await http.post(f"/v1/{path}", content=json.dumps(body).encode())

    return asyncio.run(work())


def fault_of(served, path, body, stream):
    """Return the problem of a response; empty if it is a success or an error in the format of the API."""
    full_body = {"model": "tiny", **GOOD[path], **({"stream": True} if stream else {}), **body}
    answer = sent(served, path, full_body)
    if answer.status_code < 400:
        return ""
    shape = {"type", "message"} if "messages" in path else {"message", "type", "param", "code"}
    return "" if answer.status_code < 500 and set(answer.json()["error"]) == shape else answer.text


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@example(body={"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]}, stream=True)
@example(body={"tools": [{"type": "function", "name": "x", "parameters": {"properties": []}}]}, stream=False)
@example(body={"tools": [{"name": "x", "input_schema": {"type": "object", "properties": {"a": 5}}}]}, stream=False)
@example(body={"logit_bias": {"-1": 5}}, stream=False)
@example(body={"messages": UNREADABLE}, stream=False)
@given(body=BODIES, stream=st.booleans())
def test_no_request_makes_the_server_fail(served, path, body, stream):
    assert fault_of(served, path, body, stream) == ""


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=BODIES, stream=st.booleans())
def test_no_request_of_many_makes_the_server_fail(served, path, body, stream):
    assert fault_of(served, path, body, stream) == ""


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=ANY)
def test_a_body_that_is_anything_is_no_request(served, path, body):
    assert sent(served, path, body).status_code in (400, 404)
