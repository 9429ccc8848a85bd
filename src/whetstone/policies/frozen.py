"""Frozen models, which are loaded once per folder and device while a component uses them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch

from whetstone.policies.devices import CPU
from whetstone.policies.policy import Policy, load_policy
from whetstone.policies.resolve_model import resolve_model_folder

_loading = threading.Lock()
_models: WeakValueDictionary[tuple[Any, ...], torch.nn.Module] = WeakValueDictionary()
"""Loaded models by folder, state of its files, trust and device."""
_tokenizers: WeakKeyDictionary[torch.nn.Module, Any] = WeakKeyDictionary()


def load_frozen(
    path: Path | str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    device: torch.device = CPU,
) -> Policy:
    """Load a model that is never trained; components with the same folder and device share one copy.

    A folder whose files have changed is loaded again.

    Args:
        path: Folder, name of a stored model, or name on the hub.
        revision: Branch, tag or commit on the hub; None: the main branch.
        trust_remote_code: Whether Python code of the model folder may run.
        device: Device of the model.

    Raises:
        PolicyError: Same as for `load_policy`.
    """
    folder = resolve_model_folder(path, revision=revision, trust_remote_code=trust_remote_code)
    files = sorted((file.name, file.stat()) for file in folder.iterdir() if file.is_file())
    state = tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in files)
    key = (str(folder.resolve()), state, trust_remote_code, str(device))
    with _loading:
        model = _models.get(key)
        if model is None:
            policy = load_policy(folder, trust_remote_code=trust_remote_code, device=device)
            model = policy.model.requires_grad_(False)
            _models[key], _tokenizers[model] = model, policy.tokenizer
        return Policy(model, _tokenizers[model])
