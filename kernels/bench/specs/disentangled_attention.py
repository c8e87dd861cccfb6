"""DeBERTa's attention. Every contender makes its own position scores from the projected position embeddings."""

import importlib

import torch
from torch import Tensor

from bench.attention import Ragged, flex_packed, sdpa_padded_bias
from bench.inputs import Draw
from bench.spec import OURS, Case, Contender, Shape, Spec


def prepare(shape: Shape, dtype: torch.dtype, device: torch.device) -> Case:
    from padserve_kernels.disentangled_attention import disentangled_attention
    from padserve_kernels.disentangled_attention.reference import disentangled_attention_reference, position_row

    draw = Draw(dtype, device)
    ragged = Ragged(draw.lengths(int(shape["batch"]), int(shape["longest"])))
    heads, dim, span = int(shape["heads"]), int(shape["head_dim"]), int(shape["buckets"])
    reach = int(shape["max_relative_positions"])
    rows = (
        draw.normal(ragged.total, heads, dim),
        draw.normal(ragged.total, heads, dim),
        draw.normal(ragged.total, heads, dim),
    )
    pos_key, pos_query = draw.normal(2 * span, heads, dim), draw.normal(2 * span, heads, dim)
    scale = (3 * dim) ** -0.5
    given = (*rows, pos_key, pos_query, ragged.cu_seqlens, span, reach, span, scale)
    position = torch.arange(ragged.longest)
    row = position_row(position[:, None] - position[None, :], span, reach, span).to(device)  # [longest, longest]
    key_rows, query_rows = pos_key.transpose(0, 1), pos_query.transpose(0, 1)  # [heads, 2 * span, head_dim]
    padding = ragged.padding_bias(dtype)

    def bias(q: Tensor, k: Tensor) -> Tensor:
        at = row.expand(*q.shape[:2], -1, -1)
        of_queries = torch.gather(q @ key_rows.transpose(1, 2), 3, at)
        of_keys = torch.gather(query_rows @ k.transpose(2, 3), 2, at)
        both: Tensor = (of_queries + of_keys) * scale + padding
        return both

    return Case(
        lambda: disentangled_attention_reference(*given),
        {
            OURS: Contender(lambda: disentangled_attention(*given)),
            "torch_sdpa_padded": sdpa_padded_bias(ragged, *rows, scale, bias),
            "torch_flex": flex(ragged, rows, key_rows, query_rows, row, scale),
            **flashdeberta(ragged, rows, key_rows, query_rows, span, reach, scale),
        },
    )


def flex(
    ragged: Ragged,
    rows: tuple[Tensor, Tensor, Tensor],
    key_rows: Tensor,
    query_rows: Tensor,
    row: Tensor,
    scale: float,
) -> Contender:
    """FlexAttention whose score modification looks both position terms up."""
    query, key, _ = (tensor.transpose(0, 1) for tensor in rows)
    place = ragged.position
    to_keys, to_queries = (scale * tensor.transpose(1, 2) for tensor in (key_rows, query_rows))
    of_query, of_key = query @ to_keys, key @ to_queries  # [heads, total_tokens, 2 * span], made anew by every call

    def score_mod(score: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        at = row[place[i], place[j]]
        return score + of_query[head, i, at] + of_key[head, j, at]

    attend = flex_packed(ragged, *rows, scale, score_mod)

    def with_terms() -> Tensor:
        torch.bmm(query, to_keys, out=of_query)
        torch.bmm(key, to_queries, out=of_key)
        return attend.call()

    return Contender(with_terms, attend.layout)


def flashdeberta(
    ragged: Ragged,
    rows: tuple[Tensor, Tensor, Tensor],
    key_rows: Tensor,
    query_rows: Tensor,
    span: int,
    reach: int,
    scale: float,
) -> dict[str, Contender]:
    """FlashDeBERTa's kernel over packed streams, where that package is installed."""
    if not rows[0].is_cuda:
        return {}
    try:
        attend = importlib.import_module("flashdeberta.ops.flash_attention_varlen")
    except ImportError:
        return {}
    tables = (key_rows[None].contiguous(), query_rows[None].contiguous())
    borders, longest = ragged.cu_seqlens, ragged.longest

    def call() -> Tensor:
        output: Tensor = attend.flash_attention_with_disentangled_varlen(
            *rows, *tables, borders, borders, longest, longest, False, scale, span, reach
        )
        return output

    return {"flashdeberta": Contender(call)}


SPEC = Spec(
    shapes=(
        {"batch": 32, "longest": 128, "heads": 12, "head_dim": 64, "buckets": 256, "max_relative_positions": 512},
        {"batch": 32, "longest": 512, "heads": 12, "head_dim": 64, "buckets": 256, "max_relative_positions": 512},
        {"batch": 8, "longest": 2048, "heads": 12, "head_dim": 64, "buckets": 256, "max_relative_positions": 512},
    ),
    tiny={"batch": 3, "longest": 9, "heads": 2, "head_dim": 16, "buckets": 4, "max_relative_positions": 8},
    prepare=prepare,
)
