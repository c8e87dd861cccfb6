"""No hub, no forked tokenizers, one thread an operation: set before anything heavy is imported."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
