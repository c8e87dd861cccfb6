"""infinity-emb 0.0.78 with its torch engine."""

from dataclasses import dataclass

from loadtests.peers.base import Peer, make_venv, venv


@dataclass(frozen=True, slots=True)
class Infinity(Peer):
    def install(self) -> None:
        make_venv(
            "infinity",
            [
                *("infinity-emb[server]==0.0.78", "torch==2.13.0", "transformers<5", "sentence-transformers<4"),
                *("optimum<1.24", "einops", "typer<0.16", "click<8.2", "pyarrow<20", "datasets<4"),
            ],
        )


def infinity() -> Infinity:
    return Infinity(
        name="infinity-emb 0.0.78",
        command=[
            *(str(venv("infinity") / "bin/infinity_emb"), "v2", "--model-id", "{model}", "--engine", "torch"),
            *("--served-model-name", "minilm", "--device", "cpu", "--dtype", "{dtype}", "--no-bettertransformer"),
            *("--host", "127.0.0.1", "--port", "{port}", "--log-level", "warning"),
        ],
        ready="/health",
        embed="/embeddings",
        dtypes={"float32": "float32"},
        environment={"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"},
    )
