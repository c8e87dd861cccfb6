"""One step of a decoder over the new tokens of many sequences, in one call that holds no lock.

A layer, ``norm`` standing before each part (``norm_first``) or after it:

    hidden += attention(norm(hidden) @ qkv, the sequence's keys and values so far) @ output
    hidden += attention(norm(hidden) @ cross_query, a source's keys and values) @ cross_output     where there is one
    hidden += (activation(norm(hidden) @ up)) @ down        gated: activation(x @ gate) * (x @ up)

Queries and keys are turned by their positions (``cos``, ``sin``), or scores have a bias by distance, or neither.
Products multiply float32, bfloat16 or bytes, as in `padserve_kernels.post_norm_encoder`; all else is float32. A row's
result is the same bits whatever else is in the step.

`reference.py` is the definition in torch, `compiled.py` what runs, where `can_compile` says that it can.
"""

from typing import TYPE_CHECKING

from padserve_kernels.decoder.layout import CrossWeights, DecoderLayerWeights, DecoderWeights
from padserve_kernels.x86.features import Kind, supports
from padserve_kernels.x86.layout import Norm, Weight

if TYPE_CHECKING:
    from padserve_kernels.decoder.compiled import CompiledDecoder

__all__ = [
    "CrossWeights",
    "DecoderLayerWeights",
    "DecoderWeights",
    "Kind",
    "Norm",
    "Weight",
    "can_compile",
    "compile_decoder",
]


def can_compile(kind: Kind) -> bool:
    """Whether this processor runs the compiled decoder."""
    return supports(kind)


def compile_decoder(weights: DecoderWeights) -> "CompiledDecoder":
    """Pack the weights. Errors: `NotImplementedError` where the processor lacks the instructions."""
    if not can_compile(weights.kind):
        raise NotImplementedError(f"this processor has no {weights.kind} products for compiled decoders")
    from padserve_kernels.decoder.compiled import CompiledDecoder

    return CompiledDecoder(weights)
