"""The middle of a feed-forward block."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.inputs import Draw
from bench.spec import OURS, Case, Contender, Shape, Spec, plain_and_compiled


def prepare(shape: Shape, dtype: torch.dtype, device: torch.device) -> Case:
    from padserve_kernels.bias_gelu import Approximate, bias_gelu
    from padserve_kernels.bias_gelu.reference import bias_gelu_reference

    draw = Draw(dtype, device)
    rows, dim = int(shape["rows"]), int(shape["dim"])
    approximate = cast("Approximate", shape["approximate"])
    x, bias = draw.normal(rows, dim), draw.normal(dim)

    def with_torch() -> Tensor:
        return F.gelu(x + bias, approximate=approximate)

    return Case(
        lambda: bias_gelu_reference(x, bias, approximate == "tanh"),
        {OURS: Contender(lambda: bias_gelu(x, bias, approximate)), **plain_and_compiled(with_torch, device)},
    )


SPEC = Spec(
    shapes=tuple(
        {"rows": rows, "dim": dim, "approximate": approximate}
        for approximate in ("none", "tanh")
        for dim in (1536, 3072, 4096)
        for rows in (64, 2048, 32768)
    ),
    tiny={"rows": 3, "dim": 37, "approximate": "tanh"},
    prepare=prepare,
)
