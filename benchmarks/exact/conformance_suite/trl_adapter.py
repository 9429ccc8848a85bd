"""Adapter for TRL: plays a scenario with `GRPOTrainer` and `SFTTrainer`, sampling with Transformers.

It needs TRL, peft and PyTorch, and no module of Whetstone. Several processes are started with `torchrun`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

from conformance_suite.scenario import REFUSED, Recorder, Scenario, read_lines

TOOL_CALLS = {
    "open": "<tool_call>",
    "close_pattern": r"</tool_call>\s*",
    "content": "json",
    "transform": {"type": "function", "function": "{content}"},
    "repeats": True,
}
NOT_CLAIMED = {
    "hung_tool_ends": "TRL has no deadline for tools: `GRPOTrainer` calls them in the process of the trainer.",
}
"""Check → reason for which TRL does not claim the property."""
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {"tool_calls": TOOL_CALLS, "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"}},
}


def common_options(scenario: Scenario) -> dict[str, Any]:
    """Return the options that both trainers share."""
    return {
        "output_dir": str(Path(scenario.out) / "run"),
        "use_cpu": True,
        "bf16": False,
        "seed": scenario.seed,
        "optim": "adamw_torch",
        "learning_rate": scenario.learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_steps": scenario.updates,
        "gradient_checkpointing": False,
        "save_strategy": "steps",
        "save_steps": 1,
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def record_updates(scenario: Scenario, recorder: Recorder) -> Any:
    """Return a callback that stores the weights after each update."""
    from transformers import TrainerCallback

    class Weights(TrainerCallback):  # type: ignore[misc]
        """Callback that stores merged weights."""

        def save(self, updates: int, model: Any) -> None:
            """Store the weights of the first process."""
            if recorder.process == 0:
                merged = deepcopy(model).merge_and_unload() if hasattr(model, "merge_and_unload") else model
                recorder.weights(updates, dict(merged.named_parameters()))

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            self.save(state.global_step, model)

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            self.save(state.global_step, model)

        def on_save(self, *_: Any, **__: Any) -> None:
            time.sleep(scenario.seconds_per_update)

    return Weights()


def adapters(scenario: Scenario) -> Any:
    """Return the configuration of LoRA; None without it."""
    from peft import LoraConfig

    rank = scenario.lora_rank
    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear") if rank else None


def reinforce(scenario: Scenario, recorder: Recorder) -> None:
    """Play a scenario of reinforcement."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    model = AutoModelForCausalLM.from_pretrained(scenario.model)
    tokenizer = AutoTokenizer.from_pretrained(scenario.model, padding_side="left")
    tokenizer.response_template = RESPONSE
    rows = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "task": row["id"]}
        for row in read_lines(Path(scenario.world) / "tasks.jsonl")
    ]
    looked_up = recorder.look_up

    def look_up(key: str) -> str:
        """Look up a key.

        Args:
            key: The key.

        Returns:
            The value.
        """
        return looked_up(key)

    def judge(completions: list[Any], **_: Any) -> list[float | None]:
        rewards = []
        for messages in completions:
            results = [message["content"] for message in messages if message["role"] == "tool"]
            last = messages[-1] if messages[-1]["role"] == "assistant" else {}
            rewards.append(recorder.judge(last.get("content") or "", results))
        return rewards

    class Recorded(GRPOTrainer):  # type: ignore[misc]
        """Trainer that records its generations and the sequences of its loss."""

        def _generate_single_turn(self, prompt_ids: Any, *rest: Any, **options: Any) -> Any:
            unwrapped = self.accelerator.unwrap_model(self.model)
            generate = unwrapped.generate

            def generate_recorded(*args: Any, **inputs: Any) -> Any:
                result = generate(*args, **inputs)
                width = inputs["input_ids"].shape[1]
                for prompt, mask, row in zip(inputs["input_ids"], inputs["attention_mask"], result, strict=True):
                    tokens = row[width:].tolist()
                    end = tokens.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in tokens else len(tokens)
                    recorder.sampled(prompt[mask.bool()].tolist(), tokens[:end])
                return result

            unwrapped.generate = generate_recorded
            try:
                return super()._generate_single_turn(prompt_ids, *rest, **options)
            finally:
                del unwrapped.generate

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            outputs = super()._generate_and_score_completions(inputs)
            outputs["task_number"] = self.accelerator.prepare(
                outputs["advantages"].new_tensor([int(row["task"][1:]) for row in inputs])
            )
            return outputs

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            mask = inputs["completion_mask"]
            mask = mask * inputs["tool_mask"] if "tool_mask" in inputs else mask
            for row in range(len(mask)):
                is_token = inputs["completion_mask"][row].bool()
                prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()].tolist()
                ids = prompt + inputs["completion_ids"][row][is_token].tolist()
                recorder.trained(
                    self.state.global_step,
                    ids,
                    [0] * len(prompt) + mask[row][is_token].tolist(),
                    advantage=inputs["advantages"][row].item(),
                    task=f"t{int(inputs['task_number'][row])}",
                )
            return super()._compute_loss(model, inputs)

    episodes = scenario.tasks_per_update * scenario.group_size // scenario.processes
    settings = GRPOConfig(
        **common_options(scenario),
        per_device_train_batch_size=episodes,
        gradient_accumulation_steps=1,
        steps_per_generation=scenario.updates_per_batch,
        num_generations=scenario.group_size,
        max_completion_length=scenario.max_turn_tokens * (4 if scenario.tool else 1),
        max_tool_calling_iterations=1,
        temperature=1.0,
        beta=0.0,
        dataloader_num_workers=1 if scenario.processes > 1 else 0,
    )
    trainer = Recorded(
        model=model,
        reward_funcs=judge,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        tools=[look_up] if scenario.tool else None,
        peft_config=adapters(scenario),
        callbacks=[record_updates(scenario, recorder)],
    )
    trainer.train(resume_from_checkpoint=scenario.resume or None)


def supervise(scenario: Scenario, recorder: Recorder) -> None:
    """Play a scenario of supervised fine-tuning."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    class Recorded(SFTTrainer):  # type: ignore[misc]
        """Trainer that records the sequences of its loss."""

        def compute_loss(self, model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
            for ids, labels in zip(inputs["input_ids"], inputs["labels"], strict=True):
                length = max((ids != tokenizer.pad_token_id).nonzero()).item() + 1
                mask = (labels != -100)[:length].int().tolist()
                recorder.trained(self.state.global_step, ids[:length].tolist(), mask)
            return super().compute_loss(model, inputs, *rest, **options)

    tokenizer = AutoTokenizer.from_pretrained(scenario.model)
    trainer = Recorded(
        model=AutoModelForCausalLM.from_pretrained(scenario.model),
        args=SFTConfig(**common_options(scenario), per_device_train_batch_size=4, assistant_only_loss=True),
        train_dataset=Dataset.from_list(read_lines(Path(scenario.world) / "chats.jsonl")),
        processing_class=tokenizer,
        callbacks=[record_updates(scenario, recorder)],
    )
    trainer.train(resume_from_checkpoint=scenario.resume or None)


def main(path: str) -> int:
    """Play the scenario in a file."""
    scenario = Scenario.load(path)
    if scenario.processes > 1 and "RANK" not in os.environ:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={scenario.processes}"]
        return subprocess.run([sys.executable, *launch, __file__, path]).returncode
    try:
        import trl
    except ImportError as error:
        print(f"trl: is not installed ({error}); pip install trl peft, or name another interpreter", file=sys.stderr)
        return REFUSED
    recorder = Recorder(scenario, int(os.environ.get("RANK", "0")))
    recorder.trainer("TRL", trl.__version__)
    (supervise if scenario.stage == "supervised" else reinforce)(scenario, recorder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
