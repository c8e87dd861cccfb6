"""/v1/completions and /v1/chat/completions by the official package, against `transformers.generate` alone."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.contract.chatting import TEMPLATE, WINDOW, Decoder, save_decoder
from tests.contract.pending import sent, wait_for
from tests.contract.server import Server, free_port, launch, write_config
from tests.models.conftest import TEXT

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


def streamed(stream: Any, count: int = 1) -> tuple[list[str], list[str | None], list[Any]]:
    """The text and the reason of the end of each choice of completions or of a conversation, and the chunks."""
    chunks = list(stream)
    texts, reasons = [""] * count, [None] * count
    for chunk in chunks:
        for choice in chunk.choices:
            assert reasons[choice.index] is None, "a choice goes on after its end"
            texts[choice.index] += choice.text if hasattr(choice, "text") else choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason
    assert len({chunk.id for chunk in chunks}) == 1
    return texts, reasons, chunks


def chat(official: openai.OpenAI, messages: list[Any], **options: Any) -> Any:
    return official.chat.completions.create(model="llama", messages=messages, **(GREEDY | options))


def refused(caller: Any, match: str, param: str | None, code: str = "invalid_field") -> None:
    with pytest.raises(openai.BadRequestError, match=match) as caught:
        caller()
    assert (caught.value.param, caught.value.code, caught.value.type) == (param, code, "invalid_request_error")


USER = [{"role": "user", "content": "a lazy dog"}]
TALK = [
    {"role": "system", "content": "mix their potion"},
    {"role": "user", "content": "over the iron pot"},
    {"role": "assistant", "content": "seven wizards"},
    {"role": "user", "content": "in an old stream"},
]


@pytest.mark.parametrize("messages", [USER, TALK], ids=["one", "several"])
def test_a_conversation(official: openai.OpenAI, stocks: dict[str, Decoder], messages: list[Any]) -> None:
    stock = stocks["llama"]
    ids = stock.chat_ids(messages)
    want = stock.generate(ids)
    reply = chat(official, messages)
    [choice] = reply.choices
    assert (choice.index, choice.message.role) == (0, "assistant")
    assert choice.message.content == stock.text(want)
    assert choice.finish_reason == ("stop" if want[-1] in stock.model.generation_config.eos_token_id else "length")
    assert reply.object == "chat.completion"
    assert reply.usage.prompt_tokens == len(ids)
    assert reply.usage.completion_tokens == len(want)
    assert reply.usage.total_tokens == len(ids) + len(want)
    texts, reasons, chunks = streamed(chat(official, messages, stream=True))
    assert (texts, reasons) == ([choice.message.content], [choice.finish_reason])
    assert chunks[0].choices[0].delta.role == "assistant"
    assert not [chunk for chunk in chunks[1:] if chunk.choices[0].delta.role]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert not [chunk for chunk in chunks if chunk.usage is not None]


def test_text_parts_and_names_of_token_limits(official: openai.OpenAI) -> None:
    whole = chat(official, [{"role": "user", "content": "a lazy\ndog"}])
    parts = [{"type": "text", "text": "a lazy"}, {"type": "text", "text": "dog"}]
    assert chat(official, [{"role": "user", "content": parts}]).choices == whole.choices
    short = chat(official, USER, max_completion_tokens=3, max_tokens=9)
    assert short.usage.completion_tokens == 3


def test_variables_and_continuations(official: openai.OpenAI, stocks: dict[str, Decoder]) -> None:
    stock = stocks["llama"]
    extra: dict[str, Any] = {"chat_template_kwargs": {"speaker": "tool"}}
    want = stock.generate(stock.chat_ids(USER, speaker="tool"))
    assert chat(official, USER, extra_body=extra).choices[0].message.content == stock.text(want)
    talk = [*USER, {"role": "assistant", "content": "seven wiz"}]
    want = stock.generate(stock.chat_ids(talk, add_generation_prompt=False, continue_final_message=True))
    reply = chat(official, talk, extra_body={"continue_final_message": True})
    assert reply.choices[0].message.content == stock.text(want)
    want = stock.generate(stock.chat_ids(USER, add_generation_prompt=False))
    reply = chat(official, USER, extra_body={"add_generation_prompt": False})
    assert reply.choices[0].message.content == stock.text(want)


def test_earlier_calls_of_tools(official: openai.OpenAI, stocks: dict[str, Decoder]) -> None:
    """Their arguments are JSON in a message and an object in a template."""
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "iron pot"}'}}
    given = [*USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "a"}]
    object_call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": {"city": "iron pot"}}}
    want = [*USER, {"role": "assistant", "tool_calls": [object_call]}, given[2]]
    stock = stocks["llama"]
    assert chat(official, given).choices[0].message.content == stock.text(stock.generate(stock.chat_ids(want)))


def test_the_end_of_a_turn_ends_the_text(official: openai.OpenAI, stocks: dict[str, Decoder]) -> None:
    """One token that is likelier than the end, until it was generated once."""
    stock = stocks["llama"]
    end, token = stock.tokenizer.convert_tokens_to_ids("<|im_end|>"), stock.ids("wizards")[0]
    options: dict[str, Any] = {"logit_bias": {str(token): 90, str(end): 50}, "presence_penalty": 100}
    reply = chat(official, USER, **options)
    assert reply.choices[0].message.content == stock.text([token])
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens == 2
    texts, reasons, _ = streamed(chat(official, USER, stream=True, **options))
    assert (texts, reasons) == ([stock.text([token])], ["stop"])
    going_on = chat(official, USER, **options, extra_body={"ignore_eos": True})
    assert (going_on.usage.completion_tokens, going_on.choices[0].finish_reason) == (12, "length")
    nothing = chat(official, USER, logit_bias={str(end): 1000}, stream=True)
    assert streamed(nothing)[:2] == ([""], ["stop"])


@pytest.mark.parametrize("temperature", [0, 1.3])
def test_several_prompts_and_outputs_stream_together(official: openai.OpenAI, temperature: float) -> None:
    options: dict[str, Any] = {"model": "llama", "prompt": PROMPTS, "n": 2, "temperature": temperature, "seed": 3}
    whole = official.completions.create(**options, max_tokens=12)
    assert [choice.index for choice in whole.choices] == list(range(6))
    stream = official.completions.create(**options, max_tokens=12, stream=True, stream_options={"include_usage": True})
    texts, reasons, chunks = streamed(stream, 6)
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    order = [choice.index for chunk in chunks for choice in chunk.choices]
    assert order.index(5) < len(order) - 1 - order[::-1].index(0), "the first prompt ended before the last one began"
    assert (whole.choices[0].text == whole.choices[1].text) == (temperature == 0)
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert not [chunk for chunk in chunks[:-1] if chunk.usage is not None or "usage" not in chunk.model_fields_set]


def test_defaults_are_sixteen_samples(official: openai.OpenAI, stocks: dict[str, Decoder]) -> None:
    ask: dict[str, Any] = {"model": "llama", "prompt": PROMPTS[0], "extra_body": {"ignore_eos": True}}
    found = [official.completions.create(**ask) for _ in range(4)]
    assert [reply.usage and reply.usage.completion_tokens for reply in found] == [16] * 4
    assert len({reply.choices[0].text for reply in found}) > 1
    seeded = [official.completions.create(**ask, seed=7).choices for _ in range(2)]
    assert seeded[0] == seeded[1]


def test_a_conversation_goes_on_to_the_window(official: openai.OpenAI) -> None:
    reply = chat(official, USER, max_tokens=None, extra_body={"ignore_eos": True})
    assert reply.usage.total_tokens == WINDOW
    assert reply.choices[0].finish_reason == "length"


def test_one_token_is_one_token(official: openai.OpenAI) -> None:
    for ask in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
        reply = official.completions.create(model="llama", prompt="a", temperature=0, max_tokens=1, **ask)  # type: ignore[call-overload]
        usage = list(reply)[-1].usage if ask else reply.usage
        assert usage.completion_tokens == 1


def test_stop_strings_are_never_seen(official: openai.OpenAI) -> None:
    whole = official.completions.create(model="gpt2", prompt=PROMPTS[0], **GREEDY).choices[0].text
    stop = whole[4:7]
    for given in (stop, ["never there", stop]):
        reply = official.completions.create(model="gpt2", prompt=PROMPTS[0], stop=given, **GREEDY).choices[0]
        assert (reply.text, reply.finish_reason) == (whole[: whole.index(stop)], "stop")
        stream = official.completions.create(model="gpt2", prompt=PROMPTS[0], stop=given, stream=True, **GREEDY)
        assert streamed(stream)[:2] == ([reply.text], ["stop"])


def test_echo(official: openai.OpenAI) -> None:
    plain = official.completions.create(model="llama", prompt=PROMPTS, **GREEDY).choices
    echoed = official.completions.create(model="llama", prompt=PROMPTS, echo=True, **GREEDY).choices
    assert [one.text for one in echoed] == [prompt + one.text for prompt, one in zip(PROMPTS, plain, strict=True)]
    stream = official.completions.create(model="llama", prompt=PROMPTS, echo=True, stream=True, **GREEDY)
    assert streamed(stream, 3)[0] == [one.text for one in echoed]


def test_logprobs_of_completions(official: openai.OpenAI, stocks: dict[str, Decoder]) -> None:
    stock = stocks["gpt2"]
    ids = stock.ids(PROMPTS[1])
    want = stock.generate(ids)
    likely = stock.logprobs(ids, want)
    for count in (0, 3):
        ask: dict[str, Any] = {"model": "gpt2", "prompt": PROMPTS[1], "logprobs": count, **GREEDY}
        choice = official.completions.create(**ask).choices[0]
        found = choice.logprobs
        assert found is not None
        assert found.token_logprobs == pytest.approx(
            [float(row[one]) for row, one in zip(likely, want, strict=True)], abs=1e-3
        )
        assert found.top_logprobs is not None
        assert found.tokens is not None
        assert found.text_offset is not None
        for place, top in enumerate(found.top_logprobs):
            before = [*ids, *want[:place]]
            best = likely[place].topk(max(count, 1))
            told: dict[str, float] = {}
            for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                told.setdefault(stock.added(before, token), value)
            assert top == pytest.approx(told, abs=1e-3)
            assert found.tokens[place] == stock.added(before, want[place])
        assert found.text_offset == [len("".join(found.tokens[:place])) for place in range(len(want))]
        chunks = list(official.completions.create(**ask, stream=True))
        parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
        for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [one for part in parts for one in getattr(part, field)] == getattr(found, field)


def test_logprobs_of_a_conversation(official: openai.OpenAI, stocks: dict[str, Decoder]) -> None:
    stock = stocks["llama"]
    ids = stock.chat_ids(USER)
    want = stock.generate(ids)
    likely = stock.logprobs(ids, want)
    choice = chat(official, USER, logprobs=True, top_logprobs=2).choices[0]
    content = choice.logprobs.content
    assert [one.logprob for one in content] == pytest.approx(
        [float(row[token]) for row, token in zip(likely, want, strict=True)], abs=1e-3
    )
    for row, one in zip(likely, content, strict=True):
        assert [top.logprob for top in one.top_logprobs] == pytest.approx(row.topk(2).values.tolist(), abs=1e-3)
        assert one.token == one.top_logprobs[0].token
        assert one.bytes == (None if "\ufffd" in one.token or not one.token else list(one.token.encode()))
    chunks = list(chat(official, USER, logprobs=True, top_logprobs=2, stream=True))
    told = [one for chunk in chunks if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content]
    assert told == content
    assert chat(official, USER, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_bad_conversations(official: openai.OpenAI, client: httpx.Client) -> None:
    refused(lambda: chat(official, []), "empty", None, "empty_inputs")
    refused(lambda: chat(official, [{"role": "pirate", "content": "a"}]), "no role is called pirate", "messages")
    refused(lambda: chat(official, [{"role": "user"}]), "content", "messages[0].content")
    image = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://x"}}]
    refused(lambda: chat(official, [{"role": "user", "content": image}]), "image_url", "messages[0].content[1]")
    refused(lambda: chat(official, USER, tools=[{"type": "function", "function": {"name": "f"}}]), "tools", "tools")
    refused(lambda: chat(official, USER, tool_choice="required"), "tool_choice", "tool_choice")
    refused(lambda: chat(official, USER, response_format={"type": "json_object"}), "text", "response_format")
    refused(lambda: chat(official, USER, functions=[{"name": "f"}]), "functions", "functions")
    refused(lambda: chat(official, USER, top_logprobs=2), "logprobs", "top_logprobs")
    refused(lambda: chat(official, USER, stream_options={"include_usage": True}), "stream", "stream_options")
    both = {"continue_final_message": True, "add_generation_prompt": True}
    refused(lambda: chat(official, USER, extra_body=both), "prompt", "add_generation_prompt")
    taken = {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}
    refused(lambda: chat(official, USER, extra_body=taken), "chat_template", "chat_template_kwargs")
    refused(lambda: chat(official, USER, temperature=-1), "temperature", "temperature")
    refused(lambda: chat(official, USER, n=0), "n: ", "n")
    long = [{"role": "user", "content": "the " * 200}]
    for stream in (False, True):
        refused(lambda stream=stream: chat(official, long, stream=stream), "127", None, "context_length_exceeded")  # type: ignore[misc]
    no_template = official.chat.completions.with_raw_response
    refused(lambda: no_template.create(model="gpt2", messages=USER), "no chat template", "model")  # type: ignore[arg-type]
    with pytest.raises(openai.NotFoundError, match="none"):
        official.chat.completions.create(model="none", messages=USER)  # type: ignore[arg-type]
    harmless = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "unknown": 1, "stop": None}
    body = {"model": "llama", "messages": USER, "max_tokens": 1, "user": "me", **harmless}
    assert client.post("/v1/chat/completions", json=body).status_code == 200


def test_bad_prompts(official: openai.OpenAI) -> None:
    def complete(**options: Any) -> Any:
        return lambda: official.completions.create(**({"model": "llama", "prompt": "a"} | GREEDY | options))

    refused(complete(prompt=[]), "empty", None, "empty_inputs")
    refused(complete(prompt=["a", [5]]), "mixture", "prompt")
    refused(complete(prompt=[5000]), "5000", None)
    refused(complete(prompt=[[5], []]), "input 1: ", None, "empty_input")
    refused(complete(prompt=[[5], []], stream=True), "input 1: ", None, "empty_input")
    refused(complete(prompt="the " * 200), "127", None, "context_length_exceeded")
    refused(complete(max_tokens=0), "max_tokens", "max_tokens")
    refused(complete(suffix="x"), "suffix", "suffix")
    refused(complete(best_of=3), "best_of", "best_of")
    refused(complete(echo=True, logprobs=1), "echo", "echo")
    refused(complete(logprobs=21), "logprobs", "logprobs")
    refused(complete(logit_bias={"x": 1}), "logit_bias", "logit_bias")
    refused(complete(stop=[""]), "stop", "stop[0]")
    complete(suffix="", best_of=1, n=1)()
    reply = complete(prompt="the " * 200, extra_body={"truncate": True}, max_tokens=5)()
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (WINDOW - 1, 1)


def test_models_tell_whether_they_chat(client: httpx.Client) -> None:
    told = {name: client.get(f"/models/{name}").json()["generation"]["chat_template"] for name in ("llama", "gpt2")}
    assert told == {"llama": True, "gpt2": False}


def test_the_lines_of_a_stream(client: httpx.Client) -> None:
    body = {"model": "llama", "prompt": "a", "stream": True, **GREEDY}
    reply = client.post("/v1/completions", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *lines, end, nothing = reply.text.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    assert all(line.startswith("data: {") for line in lines)


def test_a_deadline_within_a_stream(official: openai.OpenAI) -> None:
    """It has begun, so the error is a line of it; nothing after it says that the text is whole."""
    options: dict[str, Any] = {"ignore_eos": True, "timeout_ms": 60}
    stream = official.completions.create(
        model="llama", prompt=["the"] * 40, n=8, stream=True, max_tokens=120, temperature=1, extra_body=options
    )
    with pytest.raises(openai.APIError, match="deadline") as caught:
        list(stream)
    assert caught.value.type == "server_error"
    assert caught.value.code == "deadline_exceeded"


def idle(client: httpx.Client, model: str) -> bool:
    live = client.get(f"/models/{model}").json()
    return bool(live["running"] == live["waiting"] == live["blocks_used"] == 0)


@pytest.mark.parametrize("stream", [True, False])
def test_clients_that_leave_free_the_cache(running: Server, client: httpx.Client, stream: bool) -> None:
    body = {"model": "llama", "prompt": PROMPTS * 2, "n": 4, "max_tokens": 110, "ignore_eos": True, "stream": stream}
    with sent(running, "/v1/completions", [body] * 3):
        wait_for(lambda: client.get("/models/llama").json()["running"] > 0, "a running request")
    wait_for(lambda: idle(client, "llama"), "a free cache", timeout_s=10)


def test_many_conversations_at_once(running: Server, stocks: dict[str, Decoder]) -> None:
    stock = stocks["llama"]
    talks = [
        [{"role": "user", "content": " ".join(TEXT.split()[place : place + 1 + place % 9])}] for place in range(20)
    ]
    want = [stock.text(stock.generate(stock.chat_ids(talk))) for talk in talks]

    async def ask(official: openai.AsyncOpenAI, talk: Any, stream: bool) -> str:
        reply: Any = await official.chat.completions.create(model="llama", messages=talk, stream=stream, **GREEDY)
        if not stream:
            return str(reply.choices[0].message.content)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in reply])

    async def all_at_once() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="unused", max_retries=0) as official:
            return await asyncio.gather(*(ask(official, talk, place % 2 == 0) for place, talk in enumerate(talks)))

    assert asyncio.run(all_at_once()) == want
