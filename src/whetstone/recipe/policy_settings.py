"""Settings of the models that a run trains: `policy`, and the members in `policies`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from whetstone.recipe.settings_base import Settings, list_changeable_fields


class TinySettings(Settings):
    """Dimensions of a small, randomly initialized Llama model."""

    vocab_size: int = Field(384, ge=270)
    """Vocabulary size of the tokenizer, which is trained on the recipe's tasks."""
    hidden_size: int = Field(128, ge=8)
    """Hidden size of the transformer layers."""
    num_layers: int = Field(4, ge=1)
    """Number of transformer layers."""
    num_heads: int = Field(4, ge=1)
    """Number of attention heads per layer; must divide `hidden_size`."""
    intermediate_size: int = Field(384, ge=8)
    """Hidden size of the feed-forward network in each layer."""
    context_length: int = Field(512, ge=16)
    """Maximum context length."""


class LoraSettings(Settings):
    """LoRA adapters: low-rank weights, trained with PEFT instead of the model's weights."""

    rank: int = Field(16, ge=1)
    """Rank of each adapter; a higher rank has more capacity and needs more memory."""
    alpha: float = Field(32.0, gt=0)
    """Scale of the output of the adapters, divided by the rank."""
    target_modules: list[str] | str = "all-linear"
    """Names of the modules that get adapters, such as `[q_proj, v_proj]`; `all-linear`: every linear layer except the
    output layer; another text: one name, or a regular expression for the whole path of a module, as in PEFT."""
    dora: bool = False
    """Use DoRA, which trains direction and magnitude of a weight separately."""
    quantization: Literal["nf4"] | None = None
    """`nf4` stores the frozen weights of linear layers in 4 bits (QLoRA), in 4.5 bits per weight with their scales;
    needs bitsandbytes. Sampling, training, evaluation and export use the same dequantized weights."""


class PolicySettings(Settings):
    """Model in training: a pretrained model, or a tiny model from scratch."""

    CHANGES: ClassVar = list_changeable_fields(none="device trust_remote_code")

    path: str | None = None
    """A Hugging Face folder; a model of `whetstone models`, such as `smollm2-135m`; or a name on the Hugging Face hub,
    such as `Qwen/Qwen3-0.6B`, which is downloaded, or `Qwen/Qwen3-0.6B@revision`, same as in all keys that name a
    model."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub; null: its main branch. A run stores the commit that it used."""
    trust_remote_code: bool = False
    """Run code that is part of the models of this recipe: the policy's, its checkpoints', the teacher's and
    those of other seats. Judges and reward models have a separate option."""
    tiny: TinySettings | None = None
    """A new small model with these dimensions, instead of `path`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of sampling and learning. Trained weights are stored in float32; the base weights of adapters in this
    precision. `auto`: bfloat16 for a model of 20 million parameters or more if a bfloat16 matrix product is faster than
    float32 on the device, measured when the run starts and stored with the run; otherwise float32 (on a GPU without
    bfloat16: float16)."""
    device: str = "auto"
    """Device of the policy, for sampling and training: `cpu`, `cuda`, `cuda:1`, `mps`, or another PyTorch
    device. `auto`: the first GPU of CUDA or ROCm if there is one, otherwise the CPU. Apple's `mps`
    must be set by name: its speed is not measured."""
    lora: LoraSettings | None = None
    """Train adapters instead of the weights; null trains the weights."""
    freeze: list[str] = []
    """Names of parameters that are not trained; `*` matches any characters: `model.embed_tokens.*`."""


class MemberSettings(PolicySettings):
    """Settings of one model of `policies`: the keys of `policy`, and its training."""

    CHANGES: ClassVar = list_changeable_fields(none="device trust_remote_code")

    like: str | None = None
    """Other member of `policies` whose settings this member has. It starts reinforcement with a copy of that member's
    weights; keys that are set here differ."""
    trained: bool = True
    """Train the member in reinforcement, with its own optimizer; false keeps it frozen."""
    reinforcement: dict[str, Any] = {}
    """Keys of `reinforcement` that differ for this member, such as `{learning_rate: 1.0e-4}`."""
