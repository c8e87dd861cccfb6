"""CTranslate2 on whatever waits, 32 requests at most, by ``--workers`` batches at a time that share the cores."""

import os
from pathlib import Path

import ctranslate2
from transformers import AutoTokenizer

from loadtests.peers.servers.batcher import Batcher
from loadtests.peers.servers.batches import MOST
from loadtests.peers.servers.options import options
from loadtests.peers.servers.web import Body, asynchronous, serve


def main() -> None:
    given = options(converted=Path, compute=str, workers=int)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    threads = len(os.sched_getaffinity(0)) // given.workers
    settings = {"compute_type": given.compute, "inter_threads": given.workers, "intra_threads": threads}
    translator = ctranslate2.Translator(str(given.converted), **settings)

    def run(bodies: list[Body]) -> list[Body]:
        numbers = tokenizer([body["text"] for body in bodies])["input_ids"]
        sources = [tokenizer.convert_ids_to_tokens(one) for one in numbers]
        count = bodies[0]["max_new_tokens"]
        found = translator.translate_batch(
            sources, beam_size=bodies[0]["beams"], min_decoding_length=count, max_decoding_length=count
        )
        return [{"tokens": tokenizer.convert_tokens_to_ids(one.hypotheses[0])} for one in found]

    serve(asynchronous(given.task, Batcher(run, MOST, given.workers)), given.port)


if __name__ == "__main__":
    main()
