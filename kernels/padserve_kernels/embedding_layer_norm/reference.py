"""The definition of embedding layer norm: test oracle, and what runs where no kernel does."""

from torch import Tensor


def embedding_layer_norm_reference(
    ids: tuple[Tensor, Tensor, Tensor],
    tables: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    bias: Tensor,
    eps: float,
) -> Tensor:
    """See `padserve_kernels.embedding_layer_norm.embedding_layer_norm`. All in float32."""
    word, position, token_type = (table[rows.long()].float() for rows, table in zip(ids, tables, strict=True))
    total = word + position + token_type
    centred = total - total.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return (centred * (variance + eps).rsqrt() * weight.float() + bias.float()).to(tables[0].dtype)
