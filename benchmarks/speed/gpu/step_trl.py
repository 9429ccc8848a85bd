"""The step of the GPU benchmark in TRL's GRPOTrainer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

RATE = 1e-5
ROWS = 8
"""Episodes per forward pass. All 64 at once would keep 64 times 256 times 49,152 logits in float32."""


def train_with_trl(
    folder: Path,
    prompts: Sequence[str],
    sizes: Any,
    *,
    device: torch.device,
    dtype: str,
    scratch: Path,
    observe: Callable[[float, float], None],
) -> None:
    """Train for a few steps.

    Args:
        folder: The model.
        prompts: Texts of the user's message.
        sizes: Tasks per step, episodes per task, tokens, steps: `part.Sizes`.
        device: Device of the model.
        dtype: `bfloat16` for autocast, as in Whetstone; `float32`.
        scratch: Folder for files of TRL.
        observe: Called after each step with its seconds and its sampled tokens.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    episodes = sizes.tasks * sizes.group

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Measures from the end of a step to the end of the next one."""

        began = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            sampled = trainer._metrics["train"]["completions/mean_length"][-1] * episodes
            observe(time.perf_counter() - self.began, sampled)
            self.began = time.perf_counter()

    def parity(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [float(sum(ids) % 2) for ids in completion_ids]

    rows = min(ROWS, episodes)
    settings = GRPOConfig(
        output_dir=str(scratch / "trl"),
        use_cpu=device.type == "cpu",
        bf16=dtype == "bfloat16" and device.type != "cpu",
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=episodes // rows,
        num_generations=sizes.group,
        max_completion_length=sizes.tokens,
        temperature=1.0,
        beta=0.0,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_steps=sizes.steps,
        gradient_checkpointing=False,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=parity,
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": each}]} for each in prompts]),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    trainer.train()
