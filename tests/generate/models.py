"""Small generating models with random weights, and what transformers alone makes of them."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from padserve.models.generators.bart import TYPES as BART_TYPES
from padserve.models.generators.bart import BartGenerator
from padserve.models.generators.base import Generator
from padserve.models.generators.causal import CausalGenerator
from padserve.models.generators.compiled_families import COMPILED, compile_generator
from padserve.models.generators.t5 import TYPES as T5_TYPES
from padserve.models.generators.t5 import T5Generator
from padserve_kernels.decoder import can_compile

VOCAB = 120
SPECIAL = {"vocab_size": VOCAB, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
DECODER = SPECIAL | {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
GPT = DECODER | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
BART = SPECIAL | {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
T5 = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
GATED = {"feed_forward_proj": "gated-gelu"}
CAUSAL: dict[str, dict[str, Any]] = {
    "gpt2": GPT,
    "opt": DECODER | {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "gpt_neox": DECODER,
    "llama": DECODER,
    "mistral": DECODER | {"sliding_window": 8},
    "qwen2": DECODER,
    "qwen3": DECODER | {"head_dim": 8},
    "phi": DECODER,
    "phi3": DECODER,
    "gemma": DECODER | {"head_dim": 8},
    "gemma3_text": DECODER | {"head_dim": 8, "sliding_window": 8},
    "gptj": GPT | {"rotary_dim": 4},
    "smollm3": DECODER,
    "olmo2": DECODER,
    "granite": DECODER,
    "starcoder2": DECODER,
}
SEQ2SEQ: dict[str, dict[str, Any]] = {
    "bart": BART,
    "marian": BART | {"decoder_start_token_id": 1, "scale_embedding": True},
    "mbart": BART,
    "m2m_100": BART | {"scale_embedding": True},
    "pegasus": BART,
    "t5": T5,
    "mt5": T5 | GATED | {"tie_word_embeddings": False},
    "umt5": T5 | GATED,
}


@dataclass(frozen=True, slots=True)
class Made:
    """``stock`` is a model of its own: what serves may change the module that it was made of."""

    generator: Generator
    stock: Any
    is_seq2seq: bool

    @property
    def end_id(self) -> int:
        return int(self.stock.config.eos_token_id)

    def prompt(self, given: list[int]) -> list[int]:
        """What the decoder starts with."""
        return [int(self.stock.config.decoder_start_token_id)] if self.is_seq2seq else given

    @torch.inference_mode()
    def logits(self, given: list[int], tokens: list[int]) -> torch.Tensor:
        """After ``tokens`` of the decoder, by transformers alone, ``[vocab]``."""
        ids = torch.tensor([tokens])
        if self.is_seq2seq:
            output = self.stock(input_ids=torch.tensor([given]), decoder_input_ids=ids)
        else:
            output = self.stock(input_ids=ids)
        logits: torch.Tensor = output.logits[0, -1]
        return logits

    @torch.inference_mode()
    def generate(self, given: list[int], **options: Any) -> tuple[list[list[int]], list[float]]:
        """By transformers alone: generated tokens up to the end token, and the scores of beams."""
        output = self.stock.generate(
            torch.tensor([given]),
            attention_mask=torch.ones(1, len(given), dtype=torch.long),
            return_dict_in_generate=True,
            output_scores=True,
            do_sample=False,
            **options,
        )
        found = []
        for sequence in output.sequences.tolist():
            tokens = sequence[len(self.prompt(given)) :]
            found.append(tokens[: tokens.index(self.end_id) + 1] if self.end_id in tokens else tokens)
        return found, output.sequences_scores.tolist() if options.get("num_beams", 1) > 1 else []


PREFIX = "compiled "
COMPILED_NAMES = [f"{PREFIX}{name}" for name in COMPILED if can_compile("float32") and name != "mistral"]


def make(name: str) -> Made:
    """``name``: a model type, with `PREFIX` for its compiled decoder."""
    model_type = name.removeprefix(PREFIX)
    is_seq2seq = model_type in SEQ2SEQ
    config = transformers.AutoConfig.for_model(model_type, **(SEQ2SEQ if is_seq2seq else CAUSAL)[model_type])
    auto = transformers.AutoModelForSeq2SeqLM if is_seq2seq else transformers.AutoModelForCausalLM
    model = auto.from_config(config).eval()
    randomize(model)
    model.generation_config.max_length = None
    stock = copy.deepcopy(model)
    generator: Generator
    if name.startswith(PREFIX):
        generator = compile_generator(model)
    elif model_type in BART_TYPES:
        generator = BartGenerator(model)
    elif model_type in T5_TYPES:
        generator = T5Generator(model)
    else:
        generator = CausalGenerator(model)
    return Made(generator, stock, is_seq2seq)


@torch.no_grad()
def randomize(model: Any) -> None:
    """Weights large enough that tokens differ, not so large that two are nearly as likely."""
    noise = torch.Generator().manual_seed(4)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.copy_(torch.randn(parameter.shape, generator=noise) * 0.12)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, generator=noise) * 0.1)
