"""Policies: causal language models with tokenizer, adapters and critic; loading, saving, precision and devices."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.policies.adapters import (
        adapter_alpha as adapter_alpha,
        adapter_shape as adapter_shape,
        adapters_off as adapters_off,
        add_adapters as add_adapters,
        can_merge as can_merge,
        has_adapters as has_adapters,
        load_adapters as load_adapters,
        merged_weights as merged_weights,
        without_adapters as without_adapters,
    )
    from whetstone.policies.critic import (
        Critic as Critic,
        build_critic as build_critic,
        restore_critic as restore_critic,
    )
    from whetstone.policies.devices import (
        CPU as CPU,
        available_devices as available_devices,
        moved_to_device as moved_to_device,
        describe_device as describe_device,
        find_device as find_device,
        free_memory as free_memory,
        has_float64 as has_float64,
        num_threads as num_threads,
        peak_memory as peak_memory,
        release_memory as release_memory,
    )
    from whetstone.policies.export_model import (
        ExportPrecision as ExportPrecision,
        export_policy as export_policy,
        merge_adapters as merge_adapters,
    )
    from whetstone.policies.download import download_model as download_model
    from whetstone.policies.resolve_model import resolve_model_folder as resolve_model_folder
    from whetstone.policies.frozen import load_frozen as load_frozen
    from whetstone.policies.gguf import convert_gguf as convert_gguf, read_license as read_license
    from whetstone.policies.hub import is_hub_name as is_hub_name
    from whetstone.policies.hub_upload import (
        HubTarget as HubTarget,
        check_repository_name as check_repository_name,
        find_target as find_target,
        list_upload_files as list_upload_files,
        upload_folder as upload_folder,
    )
    from whetstone.policies.local_models import (
        StoredModel as StoredModel,
        Origin as Origin,
        store_model as store_model,
        stored_models as stored_models,
        models_folder as models_folder,
    )
    from whetstone.policies.attention_masks import (
        chunk_size as chunk_size,
        masks_are_known as masks_are_known,
        softmax_with_sinks as softmax_with_sinks,
    )
    from whetstone.policies.reference_forward import (
        FAULTS as FAULTS,
        ReferenceForward as ReferenceForward,
        architecture_key as architecture_key,
        model_type as model_type,
        run_reference_forward as run_reference_forward,
        get_setting as get_setting,
        forward_accepts as forward_accepts,
        vocabulary_size as vocabulary_size,
    )
    from whetstone.policies.policy import (
        Policy as Policy,
        cast_policy as cast_policy,
        freeze_parameters as freeze_parameters,
        contains_adapters as contains_adapters,
        load_policy as load_policy,
        move_policy as move_policy,
        save_policy as save_policy,
    )
    from whetstone.policies.quantized_linear import (
        BLOCK_SIZE as BLOCK_SIZE,
        is_quantized as is_quantized,
        quantize_linears as quantize_linears,
    )
    from whetstone.policies.precision import (
        Precision as Precision,
        check_dtype as check_dtype,
        describe_fast_dtype as describe_fast_dtype,
        fast_dtype as fast_dtype,
        in_dtype as in_dtype,
        suitable_dtype as suitable_dtype,
    )
    from whetstone.policies.model_catalog import PUBLISHED as PUBLISHED
    from whetstone.policies.tensor_parallel import Cut as Cut, TensorPlan as TensorPlan, tensor_plan as tensor_plan
    from whetstone.policies.tiny_model import build_tiny as build_tiny
    from whetstone.policies.shared_weights import (
        clone_trainable as clone_trainable,
        on_cpu as on_cpu,
        with_attention as with_attention,
    )
    from whetstone.policies.checkpoint_size import StoredWeights as StoredWeights, stored_weights as stored_weights

__getattr__, __dir__ = export_lazily(__name__)
