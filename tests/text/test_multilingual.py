"""Inputs with languages are those of transformers' tokenizer set to them, though ours is never set to anything."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import transformers

from padserve.text.languages import Languages
from padserve.text.multilingual import languages_of
from padserve.text.tokenizer import Tokenizer
from tests.generate.translators import marian, save

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
TEXTS = ("the quick brown fox", " an  old pot </s> so ", "", "fox \u65e5\u672c \U0001f600")
PAIRS = [("fra", "de"), ("en", "fr-FR"), ("cs", "en")]
TOKENS = ("nllb", "nllb-legacy", "m2m100", "mbart", "mbart50")


def made(kind: str, folder: Path) -> tuple[Tokenizer, Languages, Any]:
    save(kind, folder)
    stock = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer(transformers.AutoTokenizer.from_pretrained(folder))
    languages = languages_of(ours, transformers.AutoConfig.from_pretrained(folder), {})
    assert languages is not None
    return ours, languages, stock


@pytest.mark.parametrize("kind", TOKENS)
def test_a_source_language_gives_the_stock_tokens(kind: str, tmp_path: Path) -> None:
    ours, languages, stock = made(kind, tmp_path)
    before = ours.tokens(TEXTS[0]).input_ids.tolist()
    wanted = {}
    for source, _ in PAIRS:
        stock.src_lang = languages.direct("", source, None).source
        wanted[source] = [stock(text)["input_ids"] for text in TEXTS]
    assert len({str(ids) for ids in wanted.values()}) == len(PAIRS)

    def tokens(source: str) -> list[list[int]]:
        directed = [languages.direct(text, source, "de") for text in TEXTS]
        return [ours.surrounded(one.text, one.around or ((), ())).input_ids.tolist() for one in directed]

    with ThreadPoolExecutor(4) as pool:
        sources = [source for source, _ in PAIRS] * 20
        for source, got in zip(sources, pool.map(tokens, sources), strict=True):
            assert got == wanted[source]
    assert ours.tokens(TEXTS[0]).input_ids.tolist() == before


@pytest.mark.parametrize("kind", TOKENS)
def test_a_long_input_keeps_its_language(kind: str, tmp_path: Path) -> None:
    ours, languages, stock = made(kind, tmp_path)
    around = languages.direct("", "fr", None).around
    got = ours.fitted("fox " * 50, max_length=9, truncate=True, around=around)
    stock.src_lang = languages.direct("", "fr", None).source
    assert got.input_ids.tolist() == stock("fox " * 50, truncation=True, max_length=9)["input_ids"]
    assert got.truncated


@pytest.mark.parametrize("separate", [False, True])
def test_marian_spells_its_output_as_stock_does(separate: bool, tmp_path: Path) -> None:
    tokenizer = marian(tmp_path)
    if separate:
        names = str(tmp_path / "made-source.model"), str(tmp_path / "made-target.model"), str(tmp_path / "made.json")
        tokenizer = transformers.MarianTokenizer(*names, target_vocab_file=names[2], separate_vocabs=True)
    text = "the quick brown fox"
    want = tokenizer(text_target=text, add_special_tokens=False)["input_ids"]
    assert list(Tokenizer(tokenizer).target_ids(text)) == want
    assert want != tokenizer(text, add_special_tokens=False)["input_ids"]


def test_models_without_languages_have_none(tmp_path: Path) -> None:
    save("bart", tmp_path)
    ours = Tokenizer.from_pretrained(str(tmp_path))
    assert languages_of(ours, transformers.AutoConfig.from_pretrained(tmp_path), {}) is None


def test_a_pair_is_known_by_the_name_of_the_checkpoint(tmp_path: Path) -> None:
    ours = Tokenizer(marian(tmp_path))
    config = transformers.AutoConfig.for_model("marian")
    assert languages_of(ours, config, {}) is None
    config.name_or_path = "Helsinki-NLP/opus-mt-tc-big-fr-en"
    languages = languages_of(ours, config, {})
    assert languages is not None
    assert languages.codes == ("fr", "en")


@pytest.mark.parametrize(("kind", "default"), [("mbart", "decoder_start_token_id"), ("mbart50", "forced_bos_token_id")])
def test_a_checkpoint_may_have_a_target_of_its_own(kind: str, default: str, tmp_path: Path) -> None:
    ours, languages, stock = made(kind, tmp_path)
    assert languages.direct("a", None, None).target is None
    config, french = transformers.AutoConfig.from_pretrained(tmp_path), stock.lang_code_to_id["fr_XX"]
    languages = languages_of(ours, config, {default: french})  # type: ignore[assignment]
    own = languages.direct("a", None, None)
    assert (own.source, own.target, own.start, own.first) == ("en_XX", "fr_XX", None, None)
    languages = languages_of(ours, config, {default: french, "forced_bos_token_id": french})  # type: ignore[assignment]
    german = stock.lang_code_to_id["de_DE"]
    asked = languages.direct("a", None, "de")
    assert (asked.start, asked.first) == ((german if kind == "mbart" else None), german)
