"""Generating models that are served: model_type -> module and class. A family is one line here, or one file more.

Decoders listed as ``causal`` run through transformers' attention interface; loading checks that they do.
"""

from importlib import import_module
from typing import Any

CAUSAL = ("causal", "CausalGenerator")
BART = ("bart", "BartGenerator")
T5 = ("t5", "T5Generator")
GENERATORS: dict[str, tuple[str, str]] = {
    "bart": BART,
    "biogpt": CAUSAL,
    "codegen": CAUSAL,
    "cohere": CAUSAL,
    "gemma": CAUSAL,
    "gemma3_text": CAUSAL,
    "gpt2": CAUSAL,
    "gpt_bigcode": CAUSAL,
    "gpt_neox": CAUSAL,
    "gptj": CAUSAL,
    "granite": CAUSAL,
    "llama": CAUSAL,
    "m2m_100": BART,
    "marian": BART,
    "mbart": BART,
    "mistral": CAUSAL,
    "mt5": T5,
    "olmo2": CAUSAL,
    "opt": CAUSAL,
    "pegasus": BART,
    "phi": CAUSAL,
    "phi3": CAUSAL,
    "qwen2": CAUSAL,
    "qwen3": CAUSAL,
    "smollm3": CAUSAL,
    "starcoder2": CAUSAL,
    "t5": T5,
    "umt5": T5,
}


def find_generator(model_type: str) -> Any:
    """The class of a model type, a way to import it without torch; None where it is not served."""
    if model_type not in GENERATORS:
        return None
    module, name = GENERATORS[model_type]
    return lambda model: getattr(import_module(f"padserve.models.generators.{module}"), name)(model)
