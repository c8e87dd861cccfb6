"""Full attention over packed streams, as encoders run it."""

import torch

from bench.attention import Ragged, flex_packed, sdpa_padded, torch_varlen
from bench.inputs import Draw
from bench.spec import OURS, Case, Contender, Shape, Spec


def prepare(shape: Shape, dtype: torch.dtype, device: torch.device) -> Case:
    from padserve_kernels.varlen_attention import varlen_attention
    from padserve_kernels.varlen_attention.reference import varlen_attention_reference

    draw = Draw(dtype, device)
    ragged = Ragged(draw.lengths(int(shape["batch"]), int(shape["longest"])))
    heads, kv_heads, dim = int(shape["heads"]), int(shape["kv_heads"]), int(shape["head_dim"])
    query, key, value = (draw.normal(ragged.total, count, dim) for count in (heads, kv_heads, kv_heads))
    scale, borders = dim**-0.5, ragged.cu_seqlens
    return Case(
        lambda: varlen_attention_reference(query, key, value, borders, scale),
        {
            OURS: Contender(lambda: varlen_attention(query, key, value, borders, scale)),
            "torch_sdpa_padded": sdpa_padded(ragged, query, key, value, scale),
            **torch_varlen(ragged, query, key, value, scale),
            "torch_flex": flex_packed(ragged, query, key, value, scale),
        },
    )


SPEC = Spec(
    shapes=(
        {"batch": 32, "longest": 128, "heads": 12, "kv_heads": 12, "head_dim": 32},
        {"batch": 32, "longest": 512, "heads": 12, "kv_heads": 12, "head_dim": 64},
        {"batch": 8, "longest": 2048, "heads": 16, "kv_heads": 16, "head_dim": 64},
        {"batch": 8, "longest": 2048, "heads": 16, "kv_heads": 4, "head_dim": 128},
        {"batch": 1, "longest": 8192, "heads": 12, "kv_heads": 12, "head_dim": 64},
        {"batch": 512, "longest": 32, "heads": 12, "kv_heads": 12, "head_dim": 64},
    ),
    tiny={"batch": 3, "longest": 9, "heads": 4, "kv_heads": 2, "head_dim": 16},
    prepare=prepare,
)
