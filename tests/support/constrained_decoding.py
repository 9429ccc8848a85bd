"""Tools, formats, and an engine without a model that samples at random among the tokens that a constraint allows."""

import json
import math
import random
import re

from support.served_policy import build_assembly
from whetstone.inference import Generation
from whetstone.inference.protocol import EngineCapabilities

_CLOSING = '"}]<\n'


def closing_tags(format):
    """Return the closing tags of a format, with and without a line break before them."""
    tags = [tag for marker in format.markers for tag in re.findall(r"</[^<>]+>", marker)]
    return [before + tag for tag in dict.fromkeys(tags) for before in ("", "\n")]


class RandomEngine:
    """Samples any allowed token; `haste` is how often it prefers one that can close a string or an object, or starts to
    spell a closing tag.

    Args:
        tags: Texts that it spells, token by token if all of them are allowed.
    """

    def __init__(self, tokenizer, seed=0, haste=0.5, tags=()):
        self._spelled = [tokenizer.encode(tag, add_special_tokens=False) for tag in tags]
        self.version, self.capabilities = 1, EngineCapabilities()
        self._random, self._haste = random.Random(seed), haste
        texts = [tokenizer.decode([token], skip_special_tokens=False) for token in range(len(tokenizer))]
        self._closing = {token for token, text in enumerate(texts) if text[:1] and text[0] in _CLOSING}

    async def generate(self, request):
        sampling = request.sampling
        ids, logprobs, finish, plan = [], [], "length", []
        while len(ids) < sampling.max_new_tokens:
            allowed = sampling.constraint.allowed(ids).nonzero()[0].tolist()
            closing = [token for token in allowed if token in self._closing or token in sampling.stop_ids]
            if plan and plan[0] in allowed:
                ids.append(plan.pop(0))
            else:
                hurries = self._random.random() < self._haste
                spells = hurries and self._random.random() < 0.5
                spelled = [each for each in self._spelled if spells and each[0] in allowed]
                plan = list(self._random.choice(spelled)) if spelled else []
                ids.append(plan.pop(0) if plan else self._random.choice(closing if hurries and closing else allowed))
            logprobs.append(-math.log(len(allowed)))
            if ids[-1] in sampling.stop_ids:
                finish = "stop"
                break
        nothing = (0.0,) * len(ids)
        return Generation(tuple(ids), tuple(logprobs), nothing, (1,) * len(ids), finish, 0.0, tuple(logprobs))

    def forget(self, episode):
        pass

    async def close(self):
        pass


ROOM = {
    "type": "object",
    "properties": {
        "floor": {"type": "integer", "minimum": -2, "maximum": 40},
        "kind": {"enum": ["single", "double"]},
        "smoking": {"type": "boolean"},
        "extras": {"type": "array", "items": {"enum": ["bath", "view"]}, "maxItems": 3},
    },
    "required": ["floor", "kind"],
}
PERSON = {
    "type": "object",
    "properties": {"name": {"$ref": "#/$defs/Name"}, "age": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
    "required": ["age"],
    "$defs": {"Name": {"type": "string"}},
}
TOOLS = [("book_room", ROOM), ("find_person", PERSON), ("stop", {"type": "object", "properties": {}})]
SCHEMAS = dict(TOOLS)
JSON_FORMATS = ["hermes", "llama3", "mistral", "tool_calls", "deepseek_v31", "functionary_v31", "harmony", "react"]
TAG_FORMATS = ["qwen3_coder", "glm", "minimax_m2", "seed"]
OTHER_FORMATS = ["compact", "code", "tags", "lfm2", "gemma4"]
_MADE = {}


def made_with(format):
    """Return an assembly whose model calls tools in a format."""
    if format not in _MADE:
        _MADE[format] = build_assembly(f"chat.format={format}", "policy.tiny.context_length=4096")
    return _MADE[format]


def engine_for(chat, seed=0):
    """Return a random engine that knows the closing tags of a format."""
    return RandomEngine(chat.tokenizer, seed, tags=closing_tags(chat.format))


def validate(calls):
    """Check that the arguments of calls fit the schemas of `TOOLS`."""
    import jsonschema

    for name, arguments in calls:
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
        jsonschema.Draft202012Validator(SCHEMAS[name]).validate(read)
