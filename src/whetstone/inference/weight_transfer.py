"""Weight and LoRA sync to vLLM or SGLang servers: a folder in shared memory that the server reads.

The folder stays when the server dies, so a restarted server loads the weights last given.

Note:
    A head that is tied to the embeddings has no name among a model's parameters, but a server may store a copy of it in
    another layout. vLLM 0.32 on a CPU keeps the old head unless it is written too.
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
    """Folder that contains the weights last given, for a server to read.

    `RestartingEngine` and the engines that it creates share one folder, so a restarted server loads the current
    weights.

    Args:
        parent: Parent folder; None: shared memory if the machine has it, else the folder for temporary files.
        lora_alpha: LoRA alpha. With it, only adapters are written, in PEFT format; None: all weights are.
    """

    def __init__(self, *, parent: Path | str | None = None, lora_alpha: float | None = None) -> None:
        if parent is None and os.access(_IN_MEMORY, os.W_OK):
            parent = _IN_MEMORY
        self.lora_alpha = lora_alpha
        self._folder = tempfile.TemporaryDirectory(prefix="whetstone-weights-", dir=parent)
        self.path: Path | None = None
        """Folder of the weights last written; None before the first."""
        self.version = 0
        """Policy version of the weights last written."""
        self.answered = False
        """Whether a server was connected before; a server that is started afterwards is a replacement."""

    def write(self, weights: Weights, version: int) -> Path:
        """Write weights to a new folder and remove the previous one.

        Args:
            weights: Parameters by name.
            version: Policy version of the weights.

        Returns:
            The new folder.

        Raises:
            EngineError: If the folder cannot be written, or adapters and `lora_alpha` do not match.
        """
        path = Path(self._folder.name) / f"version-{version}"
        aside = path.with_suffix(".partial")
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            if self.lora_alpha is None:
                save_file(
                    _unique_tensors(_check_no_adapters(weights)), aside / "model.safetensors", metadata={"format": "pt"}
                )
            else:
                _write_adapters(weights, aside, self.lora_alpha)
            before, self.path, self.version = self.path, path, version
            shutil.rmtree(path, ignore_errors=True)
            aside.replace(path)
        except (OSError, SafetensorError) as error:
            raise EngineError(
                f"weights could not be written to {self._folder.name}: {error}; set `weights_folder` to another folder"
            ) from None
        if before is not None and before != path:
            shutil.rmtree(before, ignore_errors=True)
        return path

    def close(self) -> None:
        """Remove the folder with its weights."""
        self._folder.cleanup()


def _check_no_adapters(weights: Weights) -> Weights:
    adapter = next((name for name in weights if "lora_" in name), None)
    if adapter is not None:
        raise EngineError(f"the weights contain adapters ({adapter}); set `lora_alpha`, by which a server scales them")
    return weights


def _unique_tensors(weights: Weights) -> dict[str, Tensor]:
    """Return each distinct tensor once, under its first name, on the CPU.

    If the head is tied to the embeddings, a copy of the embeddings is added under the name of the head.
    """
    seen: dict[tuple[int, tuple[int, ...]], str] = {}
    for name, tensor in weights.items():
        seen.setdefault((tensor.data_ptr(), tuple(tensor.shape)), name)
    tensors = {name: weights[name].detach().cpu().contiguous() for name in seen.values()}
    embeddings = next((name for name in tensors if name.endswith(_EMBEDDINGS)), None)
    if embeddings is not None and not any(name.endswith(_HEADS) for name in tensors):
        tensors[_HEADS[0]] = tensors[embeddings].clone()
    return tensors


def _write_adapters(weights: Weights, folder: Path, alpha: float) -> None:
    matches = {name: match for name in weights if (match := _ADAPTER.match(name)) is not None}
    other = next((name for name in weights if "lora_" in name and name not in matches), None)
    if other is not None:
        raise EngineError(f"{other}: only plain LoRA can be synced to a server, not DoRA; remove `lora_alpha`")
    if not matches:
        raise EngineError("the weights contain no adapters, but `lora_alpha` is set; remove it")
    tensors = {
        f"base_model.model.{match['layer']}.{match['half']}.weight": weights[name].detach().cpu().contiguous()
        for name, match in matches.items()
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
        "target_modules": sorted({match["layer"].rpartition(".")[2] for match in matches.values()}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
