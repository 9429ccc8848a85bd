"""Export of evaluation results in the JSON format of EleutherAI's lm-evaluation-harness."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from whetstone.evaluation.results import Evaluation


def harness_json(name: str, evaluation: Evaluation, protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an evaluation into the results file of lm-evaluation-harness.

    Args:
        name: Name of the task set, which is the key in `results`, `configs`, `n-samples` and `versions`.
        evaluation: Result of the evaluation; each number has its standard error.
        protocol: Settings of the evaluation, stored in `configs`.

    Source: lm-evaluation-harness, https://github.com/EleutherAI/lm-evaluation-harness.
    """
    error = evaluation.standard_error
    results: dict[str, Any] = {
        "alias": name,
        "acc,none": evaluation.success,
        "acc_stderr,none": error if math.isfinite(error) else "N/A",
        "reward,none": evaluation.reward,
    }
    results |= {f"pass@{k},none": value for k, value in evaluation.pass_at.items()}
    results |= {f"pass^{k},none": value for k, value in evaluation.pass_hat.items()}
    results |= {f"maj@{k},none": value for k, value in evaluation.majority.items()}
    for key, value in list(results.items()):
        if isinstance(value, float) and not math.isfinite(value):
            results[key] = "N/A"
    sampling = {"temperature": evaluation.temperature, "do_sample": evaluation.temperature > 0}
    return {
        "results": {name: results},
        "group_subtasks": {name: []},
        "configs": {
            name: {
                "task": name,
                "repeats": protocol.get("samples", 1),
                "generation_kwargs": {**sampling, "max_gen_toks": protocol.get("max_new_tokens")},
                "metadata": dict(protocol),
            }
        },
        "versions": {name: protocol.get("whetstone", "")},
        "n-shot": {name: 0},
        "n-samples": {name: {"original": evaluation.tasks, "effective": evaluation.tasks}},
        "higher_is_better": {name: {"acc": True, "reward": True}},
        "config": {"model": protocol.get("agent", ""), "random_seed": protocol.get("seed")},
    }
