"""Numbers and lengths that every run makes alike."""

import torch
from torch import Tensor

SEED = 0


class Draw:
    """Tensors from one seeded stream of numbers; drawn on the CPU, so that every device gets the same."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.generator = torch.Generator().manual_seed(SEED)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, generator=self.generator).to(self.device, self.dtype)

    def ids(self, count: int, entries: int) -> Tensor:
        """``[count]`` int64 below ``entries``."""
        return torch.randint(entries, (count,), generator=self.generator).to(self.device)

    def lengths(self, batch: int, longest: int) -> Tensor:
        """``[batch]`` int64, uniform in 1 .. longest; the first is the longest."""
        lengths = torch.randint(1, longest + 1, (batch,), generator=self.generator)
        lengths[0] = longest
        return lengths.to(self.device)


def cumulative(lengths: Tensor) -> Tensor:
    """``[batch]`` -> ``[batch + 1]`` int32, the borders of the sequences in a packed stream."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
