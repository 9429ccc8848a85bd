"""Requests in the shape in which coding agents send them: fields, roles and blocks of each agent, with own texts.

Each function returns (path after `/v1/`, body) of the request after these earlier answers and results.
"""

import json

SHELL = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}},
    "required": ["command"],
}
TASK = "Write one.txt and two.txt"


def claude_code(steps):
    """Anthropic's Messages API, streamed, with cached blocks, an edit of thoughts and a system message after the user.

    Args:
        steps: Pairs (message of the response, result of its only call).
    """
    cached = {"cache_control": {"type": "ephemeral"}}
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Today is Monday."}, {"type": "text", "text": TASK, **cached}],
        },
        {"role": "system", "content": "Helpers: explorer, planner."},
    ]
    for message, result in steps:
        messages.append({"role": "assistant", "content": message["content"]})
        (call,) = (block for block in message["content"] if block["type"] == "tool_use")
        messages.append(
            {
                "role": "user",
                "content": [{"tool_use_id": call["id"], "type": "tool_result", "content": result, **cached}],
            }
        )
    return "messages?beta=true", {
        "model": "tiny",
        "messages": messages,
        "system": [{"type": "text", "text": "You edit files."}, {"type": "text", "text": "Be brief.", **cached}],
        "tools": [{"name": "Shell", "description": "Runs a command.", "input_schema": SHELL}],
        "metadata": {"user_id": json.dumps({"session_id": "s"})},
        "max_tokens": 200,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    }


def codex(steps):
    """OpenAI's Responses API, streamed and not stored, with a namespace of tools and metadata of the client."""
    items = [
        {"type": "message", "id": f"msg_{n}", "role": role, "content": [{"type": "input_text", "text": text}]}
        for n, (role, text) in enumerate(
            [("developer", "You edit files."), ("user", "The folder is /tmp."), ("user", TASK)]
        )
    ]
    for response, result in steps:
        items += response["output"]
        (call,) = (item for item in response["output"] if item["type"] == "function_call")
        items.append(
            {"type": "function_call_output", "id": f"fco_{len(items)}", "call_id": call["call_id"], "output": result}
        )
    shell = {"type": "function", "name": "Shell", "description": "Runs.", "strict": False, "parameters": SHELL}
    helper = {"type": "function", "name": "spawn", "description": "Starts a helper.", "parameters": SHELL}
    return "responses", {
        "model": "tiny",
        "input": items,
        "tools": [shell, {"type": "namespace", "name": "helpers", "description": "Helpers.", "tools": [helper]}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"session_id": "s", "turn": "{}"},
        "stream": True,
    }


def chat_agent(steps, **options):
    """OpenAI's chat completions, as OpenCode (streamed, with usage) and mini-swe-agent (complete) send them."""
    messages = [{"role": "system", "content": "You edit files."}, {"role": "user", "content": TASK}]
    for completion, result in steps:
        answer = completion["choices"][0]["message"]
        (call,) = answer["tool_calls"]
        messages.append({"role": "assistant", "content": answer.get("content"), "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    shell = {"name": "Shell", "description": "Runs a command.", "parameters": SHELL}
    tools = [{"type": "function", "function": shell}]
    return "chat/completions", {"model": "tiny", "messages": messages, "tools": tools, **options}


def opencode(steps):
    """Streamed chat completions with `max_tokens` and usage."""
    return chat_agent(steps, max_tokens=200, tool_choice="auto", stream=True, stream_options={"include_usage": True})


def mini_swe_agent(steps):
    """Complete chat completions without further fields."""
    return chat_agent(steps)


def read_response(path, text):
    """Return the complete response in a streamed or complete body, as the client of the agent builds it."""
    if not text.startswith(("data:", "event:")):
        return json.loads(text)
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    if path == "responses":
        return events[-1]["response"]
    if path.startswith("messages"):
        return {"content": _collect_blocks(events)}
    return {"choices": [{"message": _collect_deltas(events)}]}


def _collect_blocks(events):
    blocks, written = [], {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            at = event["index"]
            if delta["type"] == "input_json_delta":
                written[at] = written.get(at, "") + delta["partial_json"]
            elif delta["type"] == "text_delta":
                blocks[at]["text"] += delta["text"]
    for at, text in written.items():
        blocks[at]["input"] = json.loads(text)
    return blocks


def _collect_deltas(chunks):
    message = {"content": "", "tool_calls": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            message["content"] += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or ():
                while len(message["tool_calls"]) <= part["index"]:
                    message["tool_calls"].append({"type": "function", "function": {"name": "", "arguments": ""}})
                call = message["tool_calls"][part["index"]]
                call["id"] = part.get("id") or call.get("id")
                for key in ("name", "arguments"):
                    call["function"][key] += part.get("function", {}).get(key) or ""
    return message
