"""transformers' own continuous batching."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig

from loadtests.peers.servers.options import options
from loadtests.peers.servers.streaming import Body, Push, streaming
from loadtests.peers.servers.web import serve

PAGES = ContinuousBatchingConfig(page_size=32, num_blocks=1024, max_batch_tokens=512, max_requests_per_batch=32)


def main() -> None:
    given = options()
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=getattr(torch, given.dtype)).eval()
    model.generation_config.eos_token_id = -1
    model.generation_config.do_sample = False
    manager = model.init_continuous_batching(continuous_batching_config=PAGES)
    manager.start()
    names = iter(range(10**9))

    def start(body: Body, push: Push) -> None:
        name, sent = str(next(names)), 0

        def arrived(output: object) -> None:
            nonlocal sent
            tokens = output.generated_tokens  # type: ignore[attr-defined]
            for token in tokens[sent:]:
                push(token)
            sent = len(tokens)
            if output.is_finished():  # type: ignore[attr-defined]
                push(None)

        manager.register_result_handler(name, arrived)
        manager.add_request(tokenizer(body["text"])["input_ids"], name, body["max_new_tokens"], streaming=True)

    serve(streaming(given.task, start, tokenizer.decode), given.port)


if __name__ == "__main__":
    main()
