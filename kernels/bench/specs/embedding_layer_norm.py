"""What a BERT's first layer is given."""

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.inputs import Draw
from bench.spec import OURS, Case, Contender, Shape, Spec, plain_and_compiled

EPS = 1e-12


def prepare(shape: Shape, dtype: torch.dtype, device: torch.device) -> Case:
    from padserve_kernels.embedding_layer_norm import embedding_layer_norm
    from padserve_kernels.embedding_layer_norm.reference import embedding_layer_norm_reference

    draw = Draw(dtype, device)
    tokens, dim = int(shape["tokens"]), int(shape["dim"])
    entries = (int(shape["words"]), int(shape["positions"]), 2)
    input_ids, position_ids, token_type_ids = ids = (
        draw.ids(tokens, entries[0]),
        draw.ids(tokens, entries[1]),
        draw.ids(tokens, entries[2]),
    )
    words, positions, token_types = tables = (
        draw.normal(entries[0], dim),
        draw.normal(entries[1], dim),
        draw.normal(entries[2], dim),
    )
    weight, bias = draw.normal(dim), draw.normal(dim)

    def with_torch() -> Tensor:
        total = F.embedding(input_ids, words) + F.embedding(position_ids, positions)
        return F.layer_norm(total + F.embedding(token_type_ids, token_types), (dim,), weight, bias, EPS)

    return Case(
        lambda: embedding_layer_norm_reference(ids, tables, weight, bias, EPS),
        {
            OURS: Contender(lambda: embedding_layer_norm(*ids, *tables, weight, bias, EPS)),
            **plain_and_compiled(with_torch, device),
        },
    )


SPEC = Spec(
    shapes=tuple(
        {"tokens": tokens, "dim": dim, "words": 30522, "positions": 512}
        for dim in (384, 768, 1024)
        for tokens in (64, 2048, 32768)
    ),
    tiny={"tokens": 5, "dim": 37, "words": 11, "positions": 7},
    prepare=prepare,
)
