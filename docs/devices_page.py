"""The page of devices: which keys of a recipe say where models lie and what they are computed in."""

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

*Written from the docstrings by `make docs`; change them there.*

A policy is sampled and learned on one device, its critic, optimiser and keys with it. Models beside it may lie on
others. `whetstone doctor RECIPE` says, before anything is loaded, what a run holds on each device and what is free
there; a model that does not fit is refused with what would fit. A checkpoint holds no device: a run goes on on another
one, and these keys may be different then.

What is promised to the last bit (the same recipe, the same weights) holds on a CPU. On a GPU sums are made in another
order from time to time, so runs agree up to rounding there.

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
"""(section, settings, keys) in the order of the page; those of an optimiser are the warm-up's, too."""
BEHIND = """
Judges and reward models of a recipe have a `device` of their own, and take a GPU by themselves where there is one.

Where engine and learner share a GPU and take turns (`reinforcement.admit_ahead: 0`), the engine gives the memory of its
keys back before each update.

Whether bfloat16 is used on a CPU is decided by one measured matrix product: with bfloat16 instructions it takes 0.3 to
0.6 times as long as float32, without them 4 to 27 times. `whetstone doctor` prints the result (`fast_precision`). The
same measurement chooses the precision of Muon's Newton-Schulz iteration (`optimizer: muon`). A run stores both choices
in its `recipe.yaml` (`policy.dtype`; `muon_float32` or `muon_bfloat16`), and a resume on another machine keeps them.
To reproduce a processor without AVX-512 on one that has it, set `ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2`.

On a CPU with AVX-512 and its instructions for bfloat16, models of Llama's kind are sampled in bfloat16 with a few
functions of ours in C++ between products, 1.5 times as quick with SmolLM2. They are compiled when first needed, once a
machine, and kept in the user's cache folder (`XDG_CACHE_HOME`). Where there is no compiler, PyTorch's own operations do
the same; `whetstone doctor` says which of the two it is here.

{measured}
## PEFT, bitsandbytes, Liger

- **PEFT** makes the adapters of `policy.lora` and opens those that were saved; without it, the message has the command.
- **bitsandbytes**: `optimizer: adamw_8bit` takes its AdamW; it steps on a CPU, too (0.50). A model whose weights it has
  quantised, in eight bits or four, is refused as a policy in a line: weights are trained, sent to engines and compared
  as the numbers they are, and in eight bits a model gives other numbers each time. As a judge or a teacher in four bits
  it is computed as it is: 5e-7 from its own pass.
- **Liger** replaces parts of Transformers' models and needs Triton, so it was not tried on a CPU; nothing calls it.
  What your own code has patched before a policy is loaded is sampled and learned as it stands, and tried against the
  model's own pass first.
"""


def devices_page() -> str:
    """A line for each key."""
    rows = []
    for section, settings, keys in KEYS:
        said = documented(settings)
        for key in keys:
            default = settings.model_fields[key].default
            shown = {None: "null", True: "true", False: "false"}.get(default, default)
            rows.append(f"| `{section}.{key}` | `{shown}` | {said[key]} |")
    cache = parse(inspect.getdoc(ENGINES["local"]) or "").params
    rows += [f"| `engine.{each.arg_name}` | `null` | {' '.join((each.description or '').split())} |" for each in cache]
    return TOP + "\n".join(rows) + "\n" + BEHIND.replace("{measured}\n", measured_on_gpu(stored("gpu")))


MEASURED = """## Measured on a GPU

`benchmarks/gpu/run.sh` measures on one GPU, in at most ten minutes and without network: the tests of devices, whole
training steps, the log-probs of sampler and learner, the same step in TRL, and the demo. Each part has a time limit. A
part that fails does not stop the next, and an interrupted run keeps its measurements.

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
    """The section with the table of the last run of `benchmarks/gpu/run.sh`.

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
    """State, origin of the weights, numbers without a column, and the reason of a part that is not done."""
    others = {name: value for name, value in part.get("measured", {}).items() if name not in COLUMNS}
    facts = [f"{name.replace('_', ' ')} {value:.3g}" for name, value in others.items()
             if name.startswith(("passed", "failed", "skipped", "success_", "tflops", "copy", "memory"))]  # fmt: skip
    facts += [f"{part['weights']} weights"] if "weights" in part else []
    facts += part.get("warnings", [])
    state = [] if part["state"] == "done" else [f"{part['state']}: {part.get('why', '')}"]
    return "; ".join([*state, *facts]).replace("|", "/")


def documented(settings: type[BaseModel]) -> dict[str, str]:
    """The docstring of each key."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for field, below in pairwise(node.body):
        if not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)):
            continue
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            found[field.target.id] = " ".join(str(below.value.value).split())
    return found
