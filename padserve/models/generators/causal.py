"""Decoders whose attention transformers' interface carries: the stock module over one stream, our attention inside."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from padserve.attention.cached import register
from padserve.models.generators.base import Scores, Source, Step, TorchStored
from padserve.models.linear import pack_linears

WINDOWS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


def window_of(config: Any) -> int | None:
    """Tokens that a sequence may have, by a configuration; None where it says nothing."""
    found = (getattr(config, name, None) for name in WINDOWS)
    return next((int(value) for value in found if isinstance(value, int) and value > 0), None)


class CausalGenerator(TorchStored):
    """``model``: the stock model with its language-modelling head, in evaluation mode."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        model.set_attn_implementation(register())
        self.num_layers = int(config.num_hidden_layers)
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.window = window_of(config)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.token_bytes = 2 * self.num_layers * heads * head_dim * model.dtype.itemsize
        self._head = _head_of(model)
        self._base = model.base_model
        pack_linears(self._base)

    def encode(self, sources: Sequence[Sequence[int]]) -> list[Source]:
        raise NotImplementedError("a decoder has no sources")

    @torch.inference_mode()
    def step(self, step: Step) -> Scores:
        output = self._base(
            input_ids=step.input_ids[None],
            position_ids=step.positions[None],
            use_cache=False,
            step_attention=step.attention,
        )
        return Scores.of(self._head(output.last_hidden_state[:, step.wanted]))


class _Given:
    """What the stock model expects of its decoder's output: the hidden states, and None for all else."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor | None:
        return self.last_hidden_state if index == 0 else None

    def __getattr__(self, name: str) -> None:
        return None


class _GivenHidden(nn.Module):
    """Stands where the model had its decoder and gives back the hidden states it is given as ``inputs_embeds``."""

    def forward(self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **_: Any) -> _Given:
        assert inputs_embeds is not None
        return _Given(inputs_embeds)

    @property
    def decoder(self) -> "_GivenHidden":
        return self


def _head_of(model: Any) -> Callable[[Tensor], Tensor]:
    """The model's own way from hidden states ``[1, rows, hidden]`` to logits ``[rows, vocab]``: scale, caps and all."""
    headed = copy.copy(model)
    headed._modules = dict(model._modules)
    headed._modules[model.base_model_prefix] = _GivenHidden()

    def head(hidden: Tensor) -> Tensor:
        logits: Tensor = headed(inputs_embeds=hidden, use_cache=False).logits
        return logits[0].float()

    return head
