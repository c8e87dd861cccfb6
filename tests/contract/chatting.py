"""Small random decoders with a byte-level tokenizer and a chat template, and what transformers alone makes of them."""

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

from tests.generate.models import CAUSAL, randomize
from tests.models.conftest import TEXT

WINDOW = 128
START, END, TEXT_END = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role not in ['system', 'developer', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('no role is called ' + message.role) }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + (message.content or '') }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}"
    "{{ '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>' + (speaker or 'assistant') + '\n' }}{% endif %}"
)


def train_byte_level() -> Any:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=[TEXT_END, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=TEXT_END, pad_token=TEXT_END, additional_special_tokens=[START, END]
    )


def save_decoder(folder: Path, family: str, template: str | None) -> None:
    """The turn's end ends a text too, as the ``generation_config`` of chat models says."""
    tokenizer = train_byte_level()
    tokenizer.chat_template = template
    end = tokenizer.convert_tokens_to_ids(END)
    ids = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}
    config = transformers.AutoConfig.for_model(family, **(CAUSAL[family] | ids))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    randomize(model)
    model.generation_config.eos_token_id = [0, end]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Decoder:
    """transformers alone."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.generation_config.max_length = None

    def ids(self, prompt: str) -> list[int]:
        return list(self.tokenizer(prompt)["input_ids"])

    def chat_ids(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        options = {"add_generation_prompt": True} | options
        return list(self.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options))

    @torch.inference_mode()
    def generate(self, ids: list[int], **options: Any) -> list[int]:
        given = torch.tensor([ids])
        options = {"do_sample": False, "max_new_tokens": 12} | options
        found = self.model.generate(given, attention_mask=torch.ones_like(given), **options)[0].tolist()
        return list(found[len(ids) :])

    def text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def added(self, before: list[int], token: int) -> str:
        """The text that a token adds to those before it."""
        return str(self.tokenizer.decode([*before, token]))[len(self.tokenizer.decode(before)) :]

    @torch.inference_mode()
    def logprobs(self, ids: list[int], tokens: list[int]) -> torch.Tensor:
        """Of every token in the place of each of ``tokens``, ``[tokens, vocab]``."""
        logits = self.model(torch.tensor([[*ids, *tokens]])).logits[0]
        found: torch.Tensor = logits[len(ids) - 1 : -1].log_softmax(-1)
        return found
