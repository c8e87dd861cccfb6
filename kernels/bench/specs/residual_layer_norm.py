"""The end of each half of a post-norm layer."""

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.inputs import Draw
from bench.spec import OURS, Case, Contender, Shape, Spec, plain_and_compiled

EPS = 1e-12


def prepare(shape: Shape, dtype: torch.dtype, device: torch.device) -> Case:
    from padserve_kernels.residual_layer_norm import residual_layer_norm
    from padserve_kernels.residual_layer_norm.reference import residual_layer_norm_reference

    draw = Draw(dtype, device)
    rows, dim = int(shape["rows"]), int(shape["dim"])
    x, residual, weight, bias = draw.normal(rows, dim), draw.normal(rows, dim), draw.normal(dim), draw.normal(dim)

    def with_torch() -> Tensor:
        return F.layer_norm(x + residual, (dim,), weight, bias, EPS)

    return Case(
        lambda: residual_layer_norm_reference(x, residual, weight, bias, EPS),
        {
            OURS: Contender(lambda: residual_layer_norm(x, residual, weight, bias, EPS)),
            **plain_and_compiled(with_torch, device),
        },
    )


SPEC = Spec(
    shapes=tuple({"rows": rows, "dim": dim} for dim in (384, 768, 1024, 4096) for rows in (64, 2048, 32768)),
    tiny={"rows": 3, "dim": 37},
    prepare=prepare,
)
