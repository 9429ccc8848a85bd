"""How do weights reach a server of another process? As a folder in memory that it reads.

The folder stays when the server dies: whoever takes its place begins with the weights last given.

Easy to get wrong: a head that is tied to the embeddings has no name of its own among a model's parameters, and a server
may keep a copy of it in a layout of its own: vLLM 0.32 on a CPU goes on with the old head unless it is written, too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from whetstone.errors import EngineError
from whetstone.inference.protocol import Weights

_IN_MEMORY = Path("/dev/shm")
_HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
_ADAPTER = re.compile(r"^(?P<layer>.+)\.(?P<half>lora_[AB])(?:\.[^.]+)?\.weight$")


class WeightFolder:
    """The weights last given, where a server finds them.

    Args:
        parent: Where the folder is made; None: in shared memory, where the machine has it, else among temporary files.
        lora_alpha: What adapters are scaled by, over their rank. With it only adapters are written, in PEFT's layout.
    """

    def __init__(self, *, parent: Path | str | None = None, lora_alpha: float | None = None) -> None:
        if parent is None and os.access(_IN_MEMORY, os.W_OK):
            parent = _IN_MEMORY
        self.lora_alpha = lora_alpha
        self._folder = tempfile.TemporaryDirectory(prefix="whetstone-weights-", dir=parent)
        self.path: Path | None = None
        """The folder of the weights last given; None before the first."""
        self.version = 0
        self.answered = False
        """Whether a server has had them: one that is made with them is another in its place."""

    def write(self, weights: Weights, version: int) -> Path:
        """A folder with these weights; the one before is gone then.

        Raises:
            EngineError: There is no room, or the weights are adapters and nothing says how they are scaled.
        """
        path = Path(self._folder.name) / f"version-{version}"
        aside = path.with_suffix(".partial")
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            if self.lora_alpha is None:
                save_file(_apart(_whole(weights)), aside / "model.safetensors", metadata={"format": "pt"})
            else:
                _write_adapters(weights, aside, self.lora_alpha)
            before, self.path, self.version = self.path, path, version
            shutil.rmtree(path, ignore_errors=True)
            aside.replace(path)
        except (OSError, SafetensorError) as error:
            raise EngineError(
                f"weights could not be written to {self._folder.name}: {error}; `weights_folder` names another place"
            ) from None
        if before is not None and before != path:
            shutil.rmtree(before, ignore_errors=True)
        return path

    def close(self) -> None:
        """Nothing of it remains."""
        self._folder.cleanup()


def _whole(weights: Weights) -> Weights:
    adapter = next((name for name in weights if "lora_" in name), None)
    if adapter is not None:
        raise EngineError(f"the weights hold adapters ({adapter}); `lora_alpha` says how a server is to scale them")
    return weights


def _apart(weights: Weights) -> dict[str, Tensor]:
    """Each memory once, under its first name; and the head, where it is the embeddings."""
    seen: dict[tuple[int, tuple[int, ...]], str] = {}
    for name, tensor in weights.items():
        seen.setdefault((tensor.data_ptr(), tuple(tensor.shape)), name)
    apart = {name: weights[name].detach().cpu().contiguous() for name in seen.values()}
    embeddings = next((name for name in apart if name.endswith(_EMBEDDINGS)), None)
    if embeddings is not None and not any(name.endswith(_HEADS) for name in apart):
        apart[_HEADS[0]] = apart[embeddings].clone()
    return apart


def _write_adapters(weights: Weights, folder: Path, alpha: float) -> None:
    found = {name: match for name in weights if (match := _ADAPTER.match(name)) is not None}
    other = next((name for name in weights if "lora_" in name and name not in found), None)
    if other is not None:
        raise EngineError(f"{other}: only plain LoRA can be handed to a server, no DoRA; leave `lora_alpha` out")
    if not found:
        raise EngineError("the weights hold no adapters, and `lora_alpha` is set; leave it out")
    tensors = {
        f"base_model.model.{match['layer']}.{match['half']}.weight": weights[name].detach().cpu().contiguous()
        for name, match in found.items()
    }
    ranks = {tensor.shape[0] for name, tensor in tensors.items() if ".lora_A." in name}
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "",
        "r": max(ranks),
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({match["layer"].rpartition(".")[2] for match in found.values()}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
