"""Adapter for a GRPO trainer in plain PyTorch: an example of an adapter, and a control of the checks.

The environment variable `PLANT` names a check whose failure the trainer then has. A check that does not detect its
failure is worth nothing; `tests/analysis/test_conformance.py` plants each.
"""

from __future__ import annotations

import os
import random
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from conformance_suite.scenario import DOWN, Recorder, Scenario, read_lines


class Trainer:
    """Trainer of a scenario, with the failure of one check or none."""

    def __init__(self, scenario: Scenario, plant: str = "") -> None:
        self.scenario, self.plant = scenario, plant
        self.recorder = Recorder(scenario)
        self.recorder.trainer("minimal", "1")
        self.tokenizer: Any = AutoTokenizer.from_pretrained(scenario.model)
        self.model: Any = AutoModelForCausalLM.from_pretrained(scenario.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), scenario.learning_rate, weight_decay=0.0)
        self.base, self.before = deepcopy(self.model), deepcopy(self.model)
        self.tasks = read_lines(Path(scenario.world) / "tasks.jsonl")
        random.Random(scenario.seed).shuffle(self.tasks)
        self.batch: list[dict[str, Any]] = []
        self.done, self.cursor = 0, 0

    def train(self) -> None:
        """Make all updates, with a checkpoint after each."""
        if self.scenario.resume:
            self.restore()
        if self.done == 0:
            self.recorder.weights(0, dict(self.model.named_parameters()))
        while self.done < self.scenario.updates:
            rows = self.conversations() if self.scenario.stage == "supervised" else self.episodes()
            before = deepcopy(self.model)
            self.update(rows)
            self.before, self.done = before, self.done + 1
            self.save()
            self.recorder.weights(self.done, dict(self.model.named_parameters()))
            time.sleep(self.scenario.seconds_per_update)

    def update(self, rows: list[dict[str, Any]]) -> None:
        """Make one update on sequences."""
        tokens = sum(sum(row["mask"]) for row in rows)
        for row in rows * (2 if self.plant == "workers_do_not_repeat" else 1):
            self.recorder.trained(self.done, row["ids"], row["mask"], advantage=row["advantage"], task=row["task"])
            ids, mask = torch.tensor([row["ids"]]), torch.tensor(row["mask"][1:])
            logits = self.model(input_ids=ids).logits[0, :-1].log_softmax(-1)
            taken = logits.gather(-1, ids[0, 1:, None])[:, 0]
            (-(row["advantage"] * taken * mask).sum() / tokens).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def conversations(self) -> list[dict[str, Any]]:
        """Return supervised sequences, with the assistant's messages in the mask."""
        chats = read_lines(Path(self.scenario.world) / "chats.jsonl")
        rows = []
        for chat in chats[self.done * 4 : self.done * 4 + 4]:
            options: dict[str, Any] = {"return_dict": True, "return_assistant_tokens_mask": True}
            rendered = self.tokenizer.apply_chat_template(chat["messages"], **options)
            mask = rendered["assistant_masks"]
            mask = [1] * len(mask) if self.plant == "messages_are_excluded" else mask
            rows.append({"ids": rendered["input_ids"], "mask": mask, "advantage": 1.0, "task": ""})
        return rows

    def episodes(self) -> list[dict[str, Any]]:
        """Return the sequences of an update; a batch is sampled for every `updates_per_batch` updates."""
        scenario = self.scenario
        part = self.done % scenario.updates_per_batch
        if part == 0 or not self.batch:
            torch.manual_seed(scenario.seed * 1000 + self.done)
            count = scenario.tasks_per_update * scenario.updates_per_batch
            chosen, self.cursor = self.tasks[self.cursor : self.cursor + count], self.cursor + count
            self.batch = [row for task in chosen for row in self.group(task)]
        size = scenario.tasks_per_update * scenario.group_size
        return self.batch[part * size : (part + 1) * size]

    def group(self, task: dict[str, Any]) -> list[dict[str, Any]]:
        """Sample the episodes of a task, and compute their advantages."""
        rows = [self.episode(task) for _ in range(self.scenario.group_size)]
        rewards = [row["reward"] for row in rows]
        if self.plant == "missing_verdict_is_no_zero":
            rewards = [reward or 0.0 for reward in rewards]
        known = torch.tensor([reward for reward in rewards if reward is not None])
        mean, deviation = known.mean().item() if len(known) else 0.0, known.std().item() if len(known) > 1 else 0.0
        for row, reward in zip(rows, rewards, strict=True):
            row["advantage"] = 0.0 if reward is None else (reward - mean) / (deviation + 1e-4)
        return rows

    def episode(self, task: dict[str, Any]) -> dict[str, Any]:
        """Play an episode; without a reward if its tool or its judge failed."""
        user = {"role": "user", "content": task["prompt"]}
        ids = self.render([user], tools=self.scenario.tool)
        mask, results, answer, failed = [0] * len(ids), [], "", False
        for turn in range(2 if self.scenario.tool else 1):
            tokens = self.sample(ids)
            answer = self.tokenizer.decode(tokens, skip_special_tokens=True)
            ids, mask = ids + tokens, mask + [1] * len(tokens)
            if not self.scenario.tool or turn == 1 or '"key"' not in answer:
                break
            try:
                results.append(self.recorder.look_up(answer.split('"key": "')[-1].split('"')[0]))
            except ConnectionError:
                failed, results = True, [*results, DOWN]
            rest = self.render([{"role": "tool", "name": "look_up", "content": results[-1]}])
            ids += [*self.tokenizer("\n")["input_ids"], *rest]
            mask += [1 if self.plant == "results_are_excluded" else 0] * (len(ids) - len(mask))
        lost = failed and self.plant != "outage_is_no_failure"
        return {
            "ids": ids,
            "mask": mask,
            "task": task["id"],
            "reward": None if lost else self.recorder.judge(answer, results),
        }

    def render(self, messages: list[Any], *, tools: bool = False) -> list[int]:
        """Return the ids of messages before an answer."""
        offered = [{"type": "function", "function": {"name": "look_up"}}] if tools else None
        options: dict[str, Any] = {"tools": offered, "add_generation_prompt": True, "return_dict": False}
        return [int(token) for token in self.tokenizer.apply_chat_template(messages, **options)]

    def sample(self, prompt: list[int]) -> list[int]:
        """Sample a turn and record it."""
        model = {"adapter_is_sampled": self.base, "weights_are_fresh": self.before}.get(self.plant, self.model)
        options: dict[str, Any] = {"do_sample": True, "max_new_tokens": self.scenario.max_turn_tokens, "top_k": 0}
        with torch.no_grad():
            output = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), **options)
        tokens = output[0, len(prompt) :].tolist()
        self.recorder.sampled(prompt, tokens)
        if self.plant == "tokens_are_kept":
            tokens = self.tokenizer(self.tokenizer.decode(tokens))["input_ids"]
        return [int(token) for token in tokens]

    def save(self) -> None:
        """Save a checkpoint."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "batch": self.batch}
        path = Path(self.scenario.out) / "checkpoint.pt"
        state |= {"before": self.before.state_dict(), "done": self.done, "cursor": self.cursor}
        torch.save(state, f"{path}.part")
        os.replace(f"{path}.part", path)

    def restore(self) -> None:
        """Load the checkpoint."""
        state = torch.load(Path(self.scenario.out) / "checkpoint.pt")
        self.model.load_state_dict(state["model"])
        self.before.load_state_dict(state["before"])
        self.batch, self.done, self.cursor = state["batch"], state["done"], state["cursor"]
        if self.plant == "prompts_survive_a_kill":
            self.cursor += self.scenario.tasks_per_update
        if self.plant == "half_a_batch_survives":
            self.batch = self.batch[: len(self.batch) // 2] * 2
        if self.plant != "resumed_weights_are_equal":
            self.optimizer.load_state_dict(state["optimizer"])


if __name__ == "__main__":
    Trainer(Scenario.load(sys.argv[1]), os.environ.get("PLANT", "")).train()
