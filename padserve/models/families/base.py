"""What a family says of itself: how its encoder takes a packed stream."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from padserve.attention.packed import PackedLengths
from padserve.models.compiled import CompiledEncoder, compile_layers, tables_of
from padserve.models.fused import ACTIVATIONS, AfterFirst, Attend, FusedEncoder, FusedLayer, PlainAttention, StockLayer
from padserve_kernels.post_norm_encoder import Embeddings

PackedEncoder = Callable[[Tensor, Tensor, Tensor | None, tuple[int, ...], Tensor | None], Tensor]
"""(input_ids, position_ids, token_type_ids, lengths, wanted), the first three ``[total_tokens]`` -> hidden states
``[total_tokens, hidden]``, or of the rows that are ``wanted``."""


class Family:
    """Default: the stock module through transformers' attention interface, positions from 0."""

    first_token_head = True
    """The sequence-classification head looks at the first token only, so only that row is given to it."""

    def position_offset(self, config: Any) -> int:
        """What is added to a position that counts from 0 in its own sequence."""
        return 0

    def layers(self, base: Any) -> list[StockLayer] | None:
        """The stock layers to fuse; None where the family runs the stock module."""
        return None

    def embed(self, base: Any) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
        """The stock embeddings over a packed stream: ``[total_tokens]`` -> ``[total_tokens, hidden]``."""
        embeddings = base.embeddings

        def run(input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
            types = None if token_type_ids is None else token_type_ids[None]
            embedded: Tensor = embeddings(
                input_ids=input_ids[None], position_ids=position_ids[None], token_type_ids=types
            )
            return embedded[0]

        return run

    def fused_encoder(self, base: Any) -> FusedEncoder | None:
        """The fused encoder, None where the family or this checkpoint's activation has none."""
        stock = self.layers(base)
        activation = None if stock is None else ACTIVATIONS.get(self.activation_name(base.config))
        if stock is None or activation is None:
            return None
        heads = base.config.num_attention_heads
        layers = [
            FusedLayer(layer, heads, activation, attend)
            for layer, attend in zip(stock, self.attention(base), strict=True)
        ]
        return FusedEncoder(self.embed(base), layers, self.after_first(base))

    def compiled_encoder(self, base: Any) -> CompiledEncoder:
        """The encoder as one compiled call. Errors: `NotImplementedError` where it cannot be."""
        stock = self.layers(base)
        activation = None if stock is None else ACTIVATIONS.get(self.activation_name(base.config))
        plain = all(isinstance(attend, PlainAttention) for attend in self.attention(base))
        if stock is None or activation is None or not plain or self.after_first(base) is not None:
            raise NotImplementedError("the family has no compiled encoder for this checkpoint")
        return compile_layers(self.embed(base), self.tables(base), stock, base.config.num_attention_heads, activation)

    def tables(self, base: Any) -> Embeddings | None:
        """What `embed` adds and norms; None where it does more."""
        return tables_of(base.embeddings)

    def attention(self, base: Any) -> list[Attend]:
        """What attends in each layer."""
        stock = self.layers(base) or []
        heads = base.config.num_attention_heads
        return [PlainAttention(layer.query.out_features // heads) for layer in stock]

    def after_first(self, base: Any) -> AfterFirst | None:
        """What the family has between the first layer and the second."""
        return None

    def release(self, base: Any) -> None:
        """Free the stock layers' matrices once their fused copies have passed the check."""
        for layer in self.layers(base) or []:
            for linear in (layer.query, layer.key, layer.value, layer.output, layer.up, layer.down):
                linear.weight = nn.Parameter(linear.weight.new_empty(0), requires_grad=False)

    def activation_name(self, config: Any) -> str:
        name = config.hidden_act
        return name if isinstance(name, str) else ""

    def stock_encoder(self, base: Any) -> PackedEncoder:
        """The stock module over one packed row; its attention must be `padserve_packed`."""

        def run(
            input_ids: Tensor,
            position_ids: Tensor,
            token_types: Tensor | None,
            lengths: tuple[int, ...],
            wanted: Tensor | None,
        ) -> Tensor:
            extra = {} if token_types is None else {"token_type_ids": token_types[None]}
            output = base(
                input_ids=input_ids[None],
                position_ids=position_ids[None],
                packed_lengths=PackedLengths(lengths),
                **extra,
            )
            hidden: Tensor = output.last_hidden_state[0]
            return hidden if wanted is None else hidden[wanted]

        return run


def bert_layers(base: Any) -> list[StockLayer]:
    """Layers of modules that copy BERT's layout."""
    return [
        StockLayer(
            query=layer.attention.self.query,
            key=layer.attention.self.key,
            value=layer.attention.self.value,
            output=layer.attention.output.dense,
            attention_norm=layer.attention.output.LayerNorm,
            up=layer.intermediate.dense,
            down=layer.output.dense,
            output_norm=layer.output.LayerNorm,
        )
        for layer in base.encoder.layer
    ]
