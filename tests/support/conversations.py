"""Conversations, pairs and texts about a calculator, as data files."""

import json


def call(expression, id="x", name="pocket_calculator"):
    function = {"name": name, "arguments": json.dumps({"expression": expression})}
    return {"id": id, "type": "function", "function": function}


def computed(a, b):
    """Return a question, a call, its result and the answer."""
    return [
        {"role": "user", "content": f"Compute {a}*{b}"},
        {"role": "assistant", "content": None, "tool_calls": [call(f"{a}*{b}")]},
        {"role": "tool", "tool_call_id": "x", "content": str(a * b)},
        {"role": "assistant", "content": str(a * b)},
    ]


def conversations(count):
    return [{"messages": computed(a, a + 3)} for a in range(10, 10 + count)]


def pairs(count):
    return [{"prompt": f"Compute {a}+1", "chosen": str(a + 1), "rejected": str(a)} for a in range(count)]


def texts(count):
    return "\n\n".join(f"{a} times {a + 1} is {a * (a + 1)}" for a in range(count))


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
