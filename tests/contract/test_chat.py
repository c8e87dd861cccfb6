"""/v1/completions and /v1/chat/completions by the official package, against `transformers.generate` alone."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.contract.chatting import TEMPLATE, WINDOW, Decoder, save_decoder
from tests.contract.server import Server, free_port, launch, write_config

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("llama", "gpt2")}
    save_decoder(folders["llama"], "llama", TEMPLATE)
    save_decoder(folders["gpt2"], "gpt2", None)
    return folders


@pytest.fixture(scope="module")
def running(decoders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, port = tmp_path_factory.mktemp("chatting"), free_port()
    models = [{"name": name, "source": path} for name, path in decoders.items()]
    config = write_config(folder / "padserve.toml", {"port": port, "max_queue_tokens": 4000}, models)
    server = launch(folder, config, port=port)
    try:
        yield server.wait_ready()
    finally:
        code = server.terminate()
    assert code == 0, server.output[-4000:]


@pytest.fixture(scope="module")
def client(running: Server) -> Iterator[httpx.Client]:
    with running.client() as session:
        yield session


@pytest.fixture(scope="module")
def official(running: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="unused", max_retries=0) as official:
        yield official


@pytest.fixture(scope="module")
def stocks(decoders: dict[str, Path]) -> dict[str, Decoder]:
    return {name: Decoder(folder) for name, folder in decoders.items()}


PROMPTS = ["the quick brown fox", "seven wizards mix", "a lazy dog over the iron pot"]


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_prompts(official: openai.OpenAI, stocks: dict[str, Decoder], model: str) -> None:
    stock = stocks[model]
    ids = [stock.ids(prompt) for prompt in PROMPTS]
    want = [stock.generate(one) for one in ids]
    for prompt in (PROMPTS, ids):
        reply = official.completions.create(model=model, prompt=prompt, **GREEDY)
        assert [choice.index for choice in reply.choices] == [0, 1, 2]
        assert [choice.text for choice in reply.choices] == [stock.text(one) for one in want]
        assert reply.usage is not None
        assert reply.usage.prompt_tokens == sum(map(len, ids))
        assert reply.usage.completion_tokens == sum(map(len, want))
