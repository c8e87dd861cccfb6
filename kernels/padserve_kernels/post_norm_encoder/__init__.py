"""A whole post-LayerNorm encoder (BERT and its kin) over a packed stream, in one call that holds no lock.

Each layer, over rows (tokens) ``hidden`` ``[total_tokens, hidden]``, every sequence attending within itself:

    context = attention(hidden @ qkv)
    hidden = LayerNorm(hidden + context @ output)
    hidden = LayerNorm(hidden + activation(hidden @ up) @ down)

Products multiply float32, bfloat16, or bytes; everything between them is float32. A row's result is the same bits
whatever else is in the batch. ``int8``: see `padserve_kernels.int8_rows` for how rows and weights are quantized.

`reference.py` is the definition in torch, `compiled.py` what runs, where `can_compile` says that it can.
"""

from typing import TYPE_CHECKING

from padserve_kernels.post_norm_encoder.layout import Embeddings, EncoderWeights, LayerWeights
from padserve_kernels.x86.features import Kind, supports
from padserve_kernels.x86.layout import Norm, Weight

if TYPE_CHECKING:
    from padserve_kernels.post_norm_encoder.compiled import CompiledEncoder

__all__ = ["Embeddings", "EncoderWeights", "Kind", "LayerWeights", "Norm", "Weight", "can_compile", "compile_encoder"]


def can_compile(kind: Kind) -> bool:
    """Whether this processor runs the compiled encoder."""
    return supports(kind)


def compile_encoder(weights: EncoderWeights) -> "CompiledEncoder":
    """Pack the weights. Errors: `NotImplementedError` where the processor lacks the instructions."""
    if not can_compile(weights.kind):
        raise NotImplementedError(f"this processor has no {weights.kind} products for compiled encoders")
    from padserve_kernels.post_norm_encoder.compiled import CompiledEncoder

    return CompiledEncoder(weights)
