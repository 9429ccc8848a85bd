"""Play the episodes of `engine.py` with vLLM, in an interpreter that has it: one line asks, one line answers.

Draws without a seed of each request, which can end vLLM's engine on a CPU.
"""

import asyncio
import importlib
import json
import sys
import time
from typing import Any


async def episode(engine: Any, asked: dict[str, Any], number: int) -> None:
    """All turns of one sequence, each as soon as the one before is over."""
    vllm = importlib.import_module("vllm")
    ids = asked["prompts"][number]
    for turn, counts in enumerate(asked["lengths"]):
        count = counts[number]
        sampling = vllm.SamplingParams(temperature=1.0, max_tokens=count, min_tokens=count, ignore_eos=True, logprobs=0)
        name, last = f"{asked['draw']}/{number}/{turn}", None
        async for answer in engine.generate(vllm.TokensPrompt(prompt_token_ids=ids), sampling, name):
            last = answer
        assert last is not None
        ids = [*ids, *last.outputs[0].token_ids, *range(2, 2 + asked["observed"])]


async def main(folder: str, context: int, dtype: str) -> None:
    """Answer until nobody asks."""
    vllm = importlib.import_module("vllm")
    arguments = vllm.AsyncEngineArgs(
        folder, dtype=dtype, max_model_len=context, skip_tokenizer_init=True, enable_prefix_caching=True
    )
    engine = vllm.AsyncLLMEngine.from_engine_args(arguments)
    print("seconds 0", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.perf_counter()
        await asyncio.gather(*(episode(engine, asked, number) for number in range(len(asked["prompts"]))))
        print(f"seconds {time.perf_counter() - began}", flush=True)
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
