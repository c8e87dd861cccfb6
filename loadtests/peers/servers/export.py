"""A checkpoint as an ONNX file, and that file with weights in int8.

python -m loadtests.peers.servers.export --task embed --model FOLDER --output model.onnx --int8 model-int8.onnx
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

from loadtests.peers.servers.stock import checkpoint

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
FAR_BELOW = -10000.0


class Exported(torch.nn.Module):
    """Takes the mask of a tokenizer and hands on the finished one, for a smaller graph."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> Any:
        mask = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * FAR_BELOW  # [batch, 1, 1, length]
        return self.model(input_ids=input_ids, attention_mask=mask, token_type_ids=token_type_ids)[0]


def export(task: str, folder: str, output: Path) -> None:
    model = Exported(checkpoint(task, folder, attn_implementation="eager"))
    ids = torch.randint(1000, 2000, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=512)}
    torch.onnx.export(
        model,
        (ids, mask, torch.zeros_like(ids)),
        output,
        input_names=INPUTS,
        output_names=["last_hidden_state" if task == "embed" else "logits"],
        dynamic_shapes=[sizes] * len(INPUTS),
        external_data=False,
        dynamo=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--int8", required=True, type=Path)
    given = parser.parse_args()
    export(given.task, given.model, given.output)
    quantize_dynamic(given.output, given.int8, per_channel=True, weight_type=QuantType.QInt8)


if __name__ == "__main__":
    main()
