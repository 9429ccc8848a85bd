"""Inference engines: sampling of tokens with log-probs and policy versions, in this process, by vLLM or by SGLang."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.inference.engine_capabilities import check_capabilities as check_capabilities
    from whetstone.inference.compiled_decoder import missing_for as missing_for
    from whetstone.inference.engine_check import Finding as Finding, check_engine as check_engine
    from whetstone.inference.engine_factory import (
        ENGINES as ENGINES,
        cache_bytes as cache_bytes,
        uses_merged_weights as uses_merged_weights,
        sync_weights as sync_weights,
    )
    from whetstone.inference.forward_choice import describe_forward as describe_forward
    from whetstone.inference.local_engine import LocalEngine as LocalEngine
    from whetstone.inference.member import (
        MEMBERS as MEMBERS,
        Member as Member,
        MemberState as MemberState,
        frozen_member as frozen_member,
        load_member_states as load_member_states,
        member_states as member_states,
    )
    from whetstone.inference.matmul import matmul_is_batch_invariant as matmul_is_batch_invariant
    from whetstone.inference.protocol import (
        Engine as Engine,
        EngineCapabilities as EngineCapabilities,
        EngineStatistics as EngineStatistics,
        GenerateRequest as GenerateRequest,
        Generation as Generation,
        InFlight as InFlight,
        HasTokenizer as HasTokenizer,
        Sampling as Sampling,
        Scores as Scores,
        Weights as Weights,
    )
    from whetstone.inference.restarting_engine import RestartingEngine as RestartingEngine
    from whetstone.inference.server_engine import build_restarting_engine as build_restarting_engine
    from whetstone.inference.sglang import SGLangEngine as SGLangEngine
    from whetstone.inference.vllm import VLLMEngine as VLLMEngine
    from whetstone.inference.weight_transfer import WeightFolder as WeightFolder

__getattr__, __dir__ = export_lazily(__name__)
