"""Kernels run compiled where there is a GPU, else in triton's interpreter on CPU tensors."""

import pytest
import torch


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
