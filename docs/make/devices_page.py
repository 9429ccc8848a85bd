"""Page of devices: recipe keys for the placement and precision of models."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Any

from docstring_parser import parse
from measured import stored
from pydantic import BaseModel

from whetstone.inference import ENGINES
from whetstone.recipe import OptimizerSettings, PolicySettings, ReinforcementSettings
from whetstone.recipe.settings import TeacherSettings

TOP = """# Devices

*Generated from the docstrings by `make docs`; edit them there.*

A policy is sampled and trained on one device, with its critic, optimizer and KV cache. Other models can be on other
devices. `whetstone doctor RECIPE` estimates the memory of a run on each device, and the free memory, before any model
is loaded. If a model does not fit, the error has a setting that would. A checkpoint contains no device: a run can
resume on another one, with other values of these keys.

The guarantee of bit-identical weights for the same recipe applies to a CPU. On a GPU the order of sums can vary, so
runs agree up to rounding.

| key | default | |
| --- | --- | --- |
"""
KEYS: list[tuple[str, type[BaseModel], tuple[str, ...]]] = [
    ("policy", PolicySettings, ("device", "dtype")),
    ("teacher", TeacherSettings, ("device", "offload")),
    ("reinforcement", ReinforcementSettings, ("reference_device", "reference_offload")),
    ("reinforcement", OptimizerSettings, ("optimizer_offload", "activation_checkpointing", "micro_batch_tokens",
                                          "logits_memory_mb")),
]  # fmt: skip
"""(section, settings, keys) in the order of the page; those of an optimizer also apply to the warm-up."""
NOTES = """
Judges and reward models of a recipe have their own option `device`, which defaults to a GPU if there is one.

If engine and learner share a GPU and take turns (`reinforcement.admit_ahead: 0`), the engine releases the memory of its
KV cache before each update.

Whether bfloat16 is used on a CPU is decided by one measured matrix product: with bfloat16 instructions it takes 0.3 to
0.6 times as long as float32, without them 4 to 27 times. `whetstone doctor` prints the result (`fast_precision`). The
same measurement chooses the precision of Muon's Newton-Schulz iteration (`optimizer: muon`). A run stores both choices
in its `recipe.yaml` (`policy.dtype`; `muon_float32` or `muon_bfloat16`), and a resume on another machine keeps them.
To reproduce a processor without AVX-512 on one that has it, set `ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2`.

On a CPU, models of Llama's kind use one compiled function for all layers, if the width of a head is a multiple of 32:
in bfloat16 with AVX-512 and its bfloat16 instructions, in float32 with AVX2 or AVX-512. With SmolLM2 (135 million
parameters) and 64 sequences, a decode step takes 64 instead of 86 ms in bfloat16, and 123 instead of 358 ms in float32
with AVX2 (two cores of an AMD EPYC, `python -m benchmarks decode_pass --model FOLDER`). The function is compiled when
it is first needed, once per machine, and is stored in the user's cache folder (`XDG_CACHE_HOME`). Without a compiler,
PyTorch's operations compute the same up to rounding, so a seed can give other tokens. `whetstone doctor` prints which
of the two is used, for models with fewer than 20 million parameters (`small_models`) and others (`larger_models`).

{measured}
## PEFT, bitsandbytes, Liger

- **PEFT** creates and loads the adapters of `policy.lora`; if it is missing, the error has the install command.
- **bitsandbytes**: `optimizer: adamw_8bit` uses its AdamW, which also works on a CPU (0.50), and
  `policy.lora.quantization: nf4` its 4-bit weights. A model whose stored weights are quantized is rejected as a policy:
  its weights could not be trained, synced and compared exactly. A 4-bit model works as a judge or teacher: its
  log-probs differ by 5e-7 from its own forward pass.
- **Liger** replaces modules of Transformers and needs Triton, so it was not tested on a CPU; nothing calls it. A model
  that your code patches before the policy is loaded is used as it is, and compared with its own forward pass first.
"""


def devices_page() -> str:
    """Return the page, with one row per key."""
    rows = []
    for section, settings, keys in KEYS:
        descriptions = documented(settings)
        for key in keys:
            default = settings.model_fields[key].default
            text = {None: "null", True: "true", False: "false"}.get(default, default)
            rows.append(f"| `{section}.{key}` | `{text}` | {descriptions[key]} |")
    cache = parse(inspect.getdoc(ENGINES["local"]) or "").params
    rows += [f"| `engine.{each.arg_name}` | `null` | {' '.join((each.description or '').split())} |" for each in cache]
    return TOP + "\n".join(rows) + "\n" + NOTES.replace("{measured}\n", measured_on_gpu(stored("gpu")))


MEASURED = """## Measured on a GPU

`benchmarks/speed/gpu/run.sh` measures on one GPU, in at most ten minutes and without network: the tests of devices,
whole training steps, the log-probs of sampler and learner, the same step in TRL, and the demo. Each part has a time
limit. A part that fails does not stop the next, and an interrupted run keeps its measurements.

"""
NOT_RUN = """Last run: not run. The tests execute the same paths on a device in the CPU's memory that refuses tensors of
two devices, except compiled attention kernels, pinned memory, 8-bit states and learner processes with NCCL.

"""
COLUMNS = {
    "seconds_per_step": "s per step", "sampled_tokens_per_second": "sampled tokens/s",
    "update_tokens_per_second": "trained tokens/s", "mfu": "MFU", "peak_gib": "peak GiB",
    "mismatch_mean": "sampler − learner (nats)",
}  # fmt: skip


def measured_on_gpu(result: dict[str, Any]) -> str:
    """Return the section with the results of the last run of `benchmarks/speed/gpu/run.sh`.

    Args:
        result: Its stored result; empty if there is none.
    """
    if not result:
        return MEASURED + NOT_RUN
    machine: dict[str, Any] = next((part for part in result["parts"] if part["name"] == "machine"), {})
    card = machine.get("card") or machine.get("device") or result["device"]
    packages = machine.get("packages", {})
    facts = [str(card), f"commit `{result['commit']}`", result["date"]]
    facts += [f"{name} {packages[name]}" for name in ("torch", "transformers", "trl") if packages.get(name)]
    lines = [
        f"Last run: {', '.join(facts)}, {result['seconds']:.0f} s.",
        "",
        "| part | " + " | ".join(COLUMNS.values()) + " | |",
        "| --- |" + " --- |" * (len(COLUMNS) + 1),
    ]
    for part in result["parts"]:
        numbers = part.get("measured", {})
        cells = [f"{numbers[name]:.3g}" if name in numbers else "" for name in COLUMNS]
        lines.append(f"| `{part['name']}` | " + " | ".join(cells) + f" | {_remark(part)} |")
    return MEASURED + "\n".join(lines) + "\n\n"


def _remark(part: dict[str, Any]) -> str:
    """Format state, origin of the weights, further numbers, and the reason of a part that is not done."""
    others = {name: value for name, value in part.get("measured", {}).items() if name not in COLUMNS}
    facts = [f"{name.replace('_', ' ')} {value:.3g}" for name, value in others.items()
             if name.startswith(("passed", "failed", "skipped", "success_", "tflops", "copy", "memory"))]  # fmt: skip
    facts += [f"{part['weights']} weights"] if "weights" in part else []
    facts += part.get("warnings", [])
    state = [] if part["state"] == "done" else [f"{part['state']}: {part.get('why', '')}"]
    return "; ".join([*state, *facts]).replace("|", "/")


def documented(settings: type[BaseModel]) -> dict[str, str]:
    """Return the docstring of each key."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    assert isinstance(node, ast.ClassDef)
    descriptions = {}
    for field, below in pairwise(node.body):
        if not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)):
            continue
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            descriptions[field.target.id] = " ".join(str(below.value.value).split())
    return descriptions
