"""Language models as policies: loaded from a folder, or built from nothing."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.policies.adapters import (
        adapter_alpha,
        adapter_shape,
        adapters_off,
        add_adapters,
        can_merge,
        has_adapters,
        load_adapters,
        merged_weights,
        without_adapters,
    )
    from whetstone.policies.critic import Critic, critic_for, critic_from
    from whetstone.policies.devices import (
        CPU,
        available_devices,
        brought,
        described,
        find_device,
        free_memory,
        has_float64,
        num_threads,
        peak_memory,
        release_memory,
    )
    from whetstone.policies.export import ExportPrecision, export_policy, merged
    from whetstone.policies.fetching import fetch
    from whetstone.policies.finding import found_model
    from whetstone.policies.frozen import load_frozen
    from whetstone.policies.gguf import convert_gguf, licence_of
    from whetstone.policies.hub import is_hub_name
    from whetstone.policies.kept import KeptModel, Origin, keep, kept_models, models_folder
    from whetstone.policies.masking import chunk_of, masks_are_known, softmax_with_sinks
    from whetstone.policies.plain import (
        FAULTS,
        PlainPass,
        architecture_of,
        kind_of,
        plain_pass,
        setting_of,
        takes,
        vocabulary_of,
    )
    from whetstone.policies.policy import Policy, cast_policy, freeze, holds_adapters, load_policy, placed, save_policy
    from whetstone.policies.precision import (
        Precision,
        check_dtype,
        describe_fast_dtype,
        fast_dtype,
        in_dtype,
        suitable_dtype,
    )
    from whetstone.policies.published import PUBLISHED
    from whetstone.policies.tensor_parallel import Cut, TensorPlan, tensor_plan
    from whetstone.policies.tiny import build_tiny
    from whetstone.policies.view import clone_trainable, on_cpu, with_attention
    from whetstone.policies.weights import StoredWeights, stored_weights

__getattr__, __dir__ = window(__name__)

__all__ = [
    "CPU",
    "FAULTS",
    "PUBLISHED",
    "Critic",
    "Cut",
    "ExportPrecision",
    "KeptModel",
    "Origin",
    "PlainPass",
    "Policy",
    "Precision",
    "StoredWeights",
    "TensorPlan",
    "adapter_alpha",
    "adapter_shape",
    "adapters_off",
    "add_adapters",
    "architecture_of",
    "available_devices",
    "brought",
    "build_tiny",
    "can_merge",
    "cast_policy",
    "check_dtype",
    "chunk_of",
    "clone_trainable",
    "convert_gguf",
    "critic_for",
    "critic_from",
    "describe_fast_dtype",
    "described",
    "export_policy",
    "fast_dtype",
    "fetch",
    "find_device",
    "found_model",
    "free_memory",
    "freeze",
    "has_adapters",
    "has_float64",
    "holds_adapters",
    "in_dtype",
    "is_hub_name",
    "keep",
    "kept_models",
    "kind_of",
    "licence_of",
    "load_adapters",
    "load_frozen",
    "load_policy",
    "masks_are_known",
    "merged",
    "merged_weights",
    "models_folder",
    "num_threads",
    "on_cpu",
    "peak_memory",
    "placed",
    "plain_pass",
    "release_memory",
    "save_policy",
    "setting_of",
    "softmax_with_sinks",
    "stored_weights",
    "suitable_dtype",
    "takes",
    "tensor_plan",
    "vocabulary_of",
    "with_attention",
    "without_adapters",
]
