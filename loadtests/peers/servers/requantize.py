"""A GGUF file with its matrices in another type; their values are first those of float32.

python -m loadtests.peers.servers.requantize --source model.Q4_1.gguf --kind q8_0 --output model.gguf
"""

import argparse
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

TYPES = {
    "float32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "bfloat16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
WRITTEN_ANYWAY = ("GGUF.", "general.architecture", "general.file_type")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", required=True, type=Path)
    parser.add_argument("--kind", required=True, choices=list(TYPES))
    parser.add_argument("--output", required=True, type=Path)
    given = parser.parse_args()
    reader, (wanted, file_type) = GGUFReader(given.source), TYPES[given.kind]
    writer = GGUFWriter(given.output, reader.fields["general.architecture"].contents())
    writer.add_file_type(file_type)
    for name, field in reader.fields.items():
        if not name.startswith(WRITTEN_ANYWAY):
            element = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = GGMLQuantizationType.F32 if values.ndim == 1 else wanted
        writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
