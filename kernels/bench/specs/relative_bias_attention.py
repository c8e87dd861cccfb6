"""Attention with the relative position bias of MPNet. The baselines' bias is made beforehand, once for all layers."""

import torch
from torch import Tensor

from bench.attention import Ragged, flex_packed, sdpa_padded_bias
from bench.inputs import Draw
from bench.spec import OURS, Case, Contender, Shape, Spec

MAX_DISTANCE = 128


def prepare(shape: Shape, dtype: torch.dtype, device: torch.device) -> Case:
    from padserve_kernels.relative_bias_attention import relative_bias_attention
    from padserve_kernels.relative_bias_attention.reference import relative_bias_attention_reference, relative_bucket
    from padserve_kernels.varlen_attention import varlen_attention

    draw = Draw(dtype, device)
    ragged = Ragged(draw.lengths(int(shape["batch"]), int(shape["longest"])))
    heads, dim, longest = int(shape["heads"]), int(shape["head_dim"]), ragged.longest
    query, key, value = (draw.normal(ragged.total, heads, dim) for _ in range(3))
    bias_table = draw.normal(int(shape["buckets"]), heads)
    scale, borders = dim**-0.5, ragged.cu_seqlens

    relative = torch.arange(1 - longest, longest)
    by_relative = bias_table[relative_bucket(relative, len(bias_table), False, MAX_DISTANCE).to(device)]
    by_relative = by_relative.T.contiguous()  # [heads, 2 * longest - 1]
    position = torch.arange(longest, device=device)
    bias = by_relative[:, position[None, :] - position[:, None] + longest - 1]  # [heads, longest, longest]
    padded_bias = bias + ragged.padding_bias(dtype)
    place = ragged.position

    def score_mod(score: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + by_relative[head, place[j] - place[i] + longest - 1]

    rows = (query, key, value)
    return Case(
        lambda: relative_bias_attention_reference(*rows, borders, bias_table, scale, False, MAX_DISTANCE),
        {
            OURS: Contender(lambda: relative_bias_attention(*rows, borders, bias_table, scale, False, MAX_DISTANCE)),
            "padserve_varlen_bias": Contender(lambda: varlen_attention(*rows, borders, scale, bias=bias)),
            "torch_sdpa_padded": sdpa_padded_bias(ragged, *rows, scale, lambda q, k: padded_bias),
            "torch_flex": flex_packed(ragged, *rows, scale, score_mod),
        },
    )


SPEC = Spec(
    shapes=(
        {"batch": 32, "longest": 128, "heads": 12, "head_dim": 64, "buckets": 32},
        {"batch": 32, "longest": 512, "heads": 12, "head_dim": 64, "buckets": 32},
        {"batch": 8, "longest": 2048, "heads": 12, "head_dim": 64, "buckets": 32},
    ),
    tiny={"batch": 3, "longest": 9, "heads": 2, "head_dim": 16, "buckets": 8},
    prepare=prepare,
)
