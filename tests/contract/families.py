"""One small configuration per model family, and seeded weights large enough for outputs to depend on every input."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoConfig

from tests.contract.vocabularies import BERT, ROBERTA, Specials, byte_bpe, mpnet_wordpiece, unigram, wordpiece

MAX_LENGTH = 128

_USUAL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": MAX_LENGTH}
_BERT = _USUAL | {"max_position_embeddings": MAX_LENGTH, "type_vocab_size": 2}
_ROBERTA = _USUAL | {
    "max_position_embeddings": MAX_LENGTH + 2,
    "type_vocab_size": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_WINDOW = {"local_attention": 16, "global_attn_every_n_layers": 2, "num_hidden_layers": 3}
_RELATIVE = {
    "relative_attention": True,
    "position_buckets": 16,
    "max_relative_positions": -1,
    "position_biased_input": False,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "conv_kernel_size": 3,
    "conv_act": "gelu",
    "type_vocab_size": 0,
}


def _unigram_cls() -> Tokenizer:
    return unigram(BERT)


def _bpe_cls() -> Tokenizer:
    return byte_bpe(BERT)


@dataclass(frozen=True, slots=True)
class Family:
    model_type: str
    train: Callable[[], Tokenizer]
    specials: Specials
    options: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "bert": Family("bert", wordpiece, BERT, _BERT),
    "roberta": Family("roberta", byte_bpe, ROBERTA, _ROBERTA),
    "xlmr": Family("xlm-roberta", unigram, ROBERTA, _ROBERTA),
    "camembert": Family("camembert", unigram, ROBERTA, _ROBERTA),
    "distilbert": Family("distilbert", wordpiece, BERT, _DISTIL),
    "electra": Family("electra", wordpiece, BERT, _BERT | {"embedding_size": 24}),
    "albert": Family("albert", _unigram_cls, BERT, _BERT | {"embedding_size": 24}),
    "modernbert": Family("modernbert", _bpe_cls, BERT, _USUAL | {"max_position_embeddings": MAX_LENGTH} | _WINDOW),
    "deberta": Family("deberta-v2", _unigram_cls, BERT, _USUAL | {"max_position_embeddings": 640} | _RELATIVE),
    "mpnet": Family("mpnet", mpnet_wordpiece, ROBERTA, _USUAL | {"max_position_embeddings": MAX_LENGTH + 2}),
    "longformer": Family("longformer", byte_bpe, ROBERTA, _ROBERTA | {"attention_window": 16}),
}


def small_config(family: Family, tokenizer: Any, **overrides: Any) -> Any:
    special_ids = {"pad_token_id": tokenizer.pad_token_id}
    if family.model_type == "modernbert":
        special_ids |= {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
        special_ids |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    options = family.options | special_ids | {"vocab_size": len(tokenizer)} | overrides
    return AutoConfig.for_model(family.model_type, **options)


def randomize(model: torch.nn.Module, seed: int) -> None:
    """Seeded weights, biases and layer norms included: zeros and ones would hide a part that is left out."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                is_scale = name.endswith("weight")
                parameter.copy_(float(is_scale) + 0.1 * noise)
            elif "embed" in name:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(1.2 * noise / parameter.shape[-1] ** 0.5)
    model.eval()
