"""Play the episodes of `engine.py` with vLLM in its own interpreter: one line per request, one per response.

Requests have no seed, because seeds can crash vLLM's engine on a CPU.
"""

import asyncio
import importlib
import json
import sys
import time
from typing import Any


async def episode(engine: Any, request: dict[str, Any], number: int) -> None:
    """Sample all turns of one sequence in order."""
    vllm = importlib.import_module("vllm")
    ids = request["prompts"][number]
    for turn, counts in enumerate(request["lengths"]):
        count = counts[number]
        sampling = vllm.SamplingParams(temperature=1.0, max_tokens=count, min_tokens=count, ignore_eos=True, logprobs=0)
        name, last = f"{request['draw']}/{number}/{turn}", None
        async for answer in engine.generate(vllm.TokensPrompt(prompt_token_ids=ids), sampling, name):
            last = answer
        assert last is not None
        ids = [*ids, *last.outputs[0].token_ids, *range(2, 2 + request["observed"])]


async def main(folder: str, context: int, dtype: str) -> None:
    """Handle requests until standard input ends."""
    vllm = importlib.import_module("vllm")
    arguments = vllm.AsyncEngineArgs(
        folder, dtype=dtype, max_model_len=context, skip_tokenizer_init=True, enable_prefix_caching=True
    )
    engine = vllm.AsyncLLMEngine.from_engine_args(arguments)
    print("seconds 0", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        await asyncio.gather(*(episode(engine, request, number) for number in range(len(request["prompts"]))))
        print(f"seconds {time.perf_counter() - began}", flush=True)
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
