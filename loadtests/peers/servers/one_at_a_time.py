"""``generate`` of transformers, one request after the other, each token sent on as it comes."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from loadtests.peers.servers.options import options
from loadtests.peers.servers.streaming import Body, Push, streaming
from loadtests.peers.servers.web import serve


class Streamer:
    """What ``generate`` calls: first with the prompt, then with each token."""

    def __init__(self, loop: asyncio.AbstractEventLoop, push: Push) -> None:
        self.loop, self.push, self.prompt_seen = loop, push, False

    def put(self, tokens: torch.Tensor) -> None:
        if self.prompt_seen:
            self.loop.call_soon_threadsafe(self.push, int(tokens))
        self.prompt_seen = True

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.push, None)


def main() -> None:
    given = options()
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=getattr(torch, given.dtype)).eval()
    model.generation_config.eos_token_id = None
    thread = ThreadPoolExecutor(1)

    def generate(body: Body, streamer: Any) -> None:
        features = tokenizer(body["text"], return_tensors="pt")
        count = body["max_new_tokens"]
        with torch.inference_mode():
            model.generate(**features, max_new_tokens=count, do_sample=False, streamer=streamer)

    def start(body: Body, push: Push) -> None:
        thread.submit(generate, body, Streamer(asyncio.get_running_loop(), push))

    serve(streaming(given.task, start, tokenizer.decode), given.port)


if __name__ == "__main__":
    main()
