"""An episode has the same tokens, log-probs and masks through a client as in the native loop.

The chat templates are those of real models. The model is small and randomly initialized; its first turns are
constrained to a call with sampled digits, since such a model would not call a tool otherwise.
"""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from support.chat_templates import real_templates, real_tokenizer
from support.served_policy import Served
from support.slow import mostly_slow
from whetstone.assembly import assemble
from whetstone.chat import Message, ToolCall, detect_tool_call_format
from whetstone.policies import Policy
from whetstone.recipe import load_recipe
from whetstone.rollout import GroupPlan
from whetstone.seeding import derive_seed
from whetstone.tools import Toolset
from whetstone.tools.arithmetic_tools import pocket_calculator
from whetstone.trajectory import Author

REAL = real_templates()
EIGHT = [
    "Qwen-Qwen3-0.6B",
    "meta-llama-Llama-3.1-8B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "google-gemma-4-31B-it",
    "deepseek-ai-DeepSeek-V3.1",
    "GLM-4.6",
    "Kimi-K2-Instruct",
    "openai-gpt-oss-120b",
]
TOOLS = Toolset([pocket_calculator])
OFFERED = [spec.to_openai() for spec in TOOLS.specs]
CONTEXT, CALLS, FREE, SEED = 3072, 2, 24, 11


def policy_of(name):
    tokenizer = real_tokenizer(name, REAL[name])
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=CONTEXT, eos_token_id=None, **small)
    return Policy(LlamaForCausalLM(config).eval(), tokenizer)


def build_assembly(name):
    policy = policy_of(name)
    changes = [
        f"chat.format={detect_tool_call_format(policy.tokenizer)}",
        "ablations=null",
        f"rollout.max_new_tokens={CONTEXT}",
    ]
    return assemble(load_recipe("demo", [*changes, f"environment.max_turns={CALLS + 1}"]), policy)


class CallConstraint:
    """Constrain a response to the tokens of a call with any digits."""

    def __init__(self, chat, vocabulary):
        self.chat, self.vocabulary = chat, vocabulary
        call = Message("assistant", (), (ToolCall("pocket_calculator", '{"expression": "12 + 34"}'),))
        self.shape = chat.write(call, TOOLS.specs)
        self.digits = [chat.encode(digit)[0] for digit in "123456789"]

    def allowed(self, sampled):
        mask = np.zeros(self.vocabulary, dtype=bool)
        wanted = self.shape[len(sampled)]
        mask[self.digits if wanted in self.digits else [wanted]] = True
        return mask


class CallingEngine:
    """An engine whose first responses are calls and whose last is unconstrained."""

    def __init__(self, assembly):
        self.engine, self.chat = assembly.build_engine(), assembly.chat
        self.vocabulary = len(assembly.policy.tokenizer)
        self.samplings = []

    def __getattr__(self, name):
        return getattr(self.engine, name)

    async def generate(self, request):
        self.samplings.append(request.sampling)
        shape = CallConstraint(self.chat, self.vocabulary) if len(self.samplings) <= CALLS else None
        bounded = replace(request.sampling, constraint=shape, max_new_tokens=len(shape.shape) if shape else FREE)
        return await self.engine.generate(replace(request, sampling=bounded))


def play_natively(assembly, *, greedy=False):
    async def run():
        engine = CallingEngine(assembly)
        try:
            actor = assembly.policy_actor(engine, temperature=0.0 if greedy else 1.0)
            return await assembly.build_collector(actor).sample(GroupPlan(assembly.source.task(0), seed=SEED))
        finally:
            await engine.close()

    return asyncio.run(run())


def play_with_client(assembly, *, greedy=False, streamed=False):
    """Play the episode in the usual loop of a client that has only an address."""
    task = assembly.source.task(0)

    async def send(client, messages):
        options = {"model": "tiny", "messages": messages, "tools": OFFERED, **({"temperature": 0} if greedy else {})}
        if not streamed:
            response = await client.chat.completions.create(**options)
            return response.choices[0].message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
        text, calls = "", []
        async for piece in await client.chat.completions.create(**options, stream=True):
            delta = piece.choices[0].delta
            text += delta.content or ""
            calls += [call.model_dump(exclude={"index"}) for call in delta.tool_calls or ()]
        return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}

    async def run():
        served = Served(assembly, engine=CallingEngine(assembly))
        headers = {"x-whetstone-task": task.id, "x-whetstone-seed": str(derive_seed(SEED, task.id, 0))}
        messages = [{"role": "user", "content": task.prompt}]
        try:
            client = served.client(default_headers=headers)
            for _ in range(CALLS + 1):
                message = await send(client, messages)
                messages.append(message)
                calls = message.get("tool_calls", ())
                for call in calls:
                    result = pocket_calculator(**json.loads(call["function"]["arguments"]))
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
                if not calls:
                    break
            (episode,) = served.episodes
            return episode.build_trajectory()
        finally:
            await served.close()

    return asyncio.run(run())


def comparable(trajectory):
    """Return all of a trajectory that a learner uses."""
    segments = [(s.tokens.ids, s.tokens.logprobs, s.tokens.versions, s.action_mask) for s in trajectory.segments()]
    return [repr(part) for part in segments], [turn.message for turn in trajectory.turns]  # NaN is written as itself


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", mostly_slow([pytest.param(n, id=n) for n in EIGHT], quick=["GLM-4.6"]))
def test_episode_through_the_endpoint_has_the_tokens_of_the_native_loop(name, streamed, greedy):
    assembly = build_assembly(name)
    native = play_natively(assembly, greedy=greedy)
    served = play_with_client(assembly, greedy=greedy, streamed=streamed)
    assert len(native.turns) == CALLS + 1
    assert all(turn.message.tool_calls for turn in native.turns[:CALLS])
    assert comparable(served) == comparable(native)
    assert served.task_id == native.task_id


def test_compared_calls_were_sampled():
    native = play_natively(build_assembly("GLM-4.6"))
    digits = [sign for turn in native.turns[:CALLS] for sign in turn.message.tool_calls[0].arguments if sign.isdigit()]
    assert len(set(digits)) > 2
    assert all(author is Author.POLICY for turn in native.turns for author in turn.action.authors)
