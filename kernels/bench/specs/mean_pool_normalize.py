"""From the last layer's rows to one unit vector for each sequence."""

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.attention import Ragged
from bench.inputs import Draw
from bench.spec import OURS, Case, Contender, Shape, Spec, compiled


def prepare(shape: Shape, dtype: torch.dtype, device: torch.device) -> Case:
    from padserve_kernels.mean_pool_normalize import mean_pool_normalize
    from padserve_kernels.mean_pool_normalize.reference import mean_pool_normalize_reference

    draw = Draw(dtype, device)
    ragged = Ragged(draw.lengths(int(shape["batch"]), int(shape["longest"])))
    hidden = draw.normal(ragged.total, int(shape["dim"]))
    padded = hidden.new_zeros(ragged.batch, ragged.longest, hidden.shape[1])
    padded[ragged.real] = hidden
    counts = ragged.lengths[:, None]

    def by_index_add() -> Tensor:
        sums = hidden.new_zeros(ragged.batch, hidden.shape[1], dtype=torch.float32)
        return F.normalize(sums.index_add_(0, ragged.seq, hidden.float()) / counts, dim=-1).to(dtype)

    def by_mask() -> Tensor:
        mask = ragged.real[:, :, None].to(dtype)
        return F.normalize((padded * mask).sum(1, dtype=torch.float32) / counts, dim=-1).to(dtype)

    contenders = {
        OURS: Contender(lambda: mean_pool_normalize(hidden, ragged.cu_seqlens)),
        "torch_index_add": Contender(by_index_add),
        "torch_padded": Contender(by_mask),
    }
    if device.type == "cuda":
        contenders["torch_padded_compile"] = Contender(compiled(by_mask))
    return Case(lambda: mean_pool_normalize_reference(hidden, ragged.cu_seqlens, True, 1e-12), contenders)


SPEC = Spec(
    shapes=tuple(
        {"batch": batch, "longest": longest, "dim": dim}
        for dim in (384, 1024)
        for batch, longest in ((1, 8192), (32, 512), (512, 64))
    ),
    tiny={"batch": 4, "longest": 9, "dim": 37},
    prepare=prepare,
)
