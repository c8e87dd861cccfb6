"""No hub, no forked tokenizers, kernels interpreted where there is no GPU: set before anything heavy is imported."""

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
if not Path("/dev/nvidia0").exists():
    os.environ["TRITON_INTERPRET"] = "1"
