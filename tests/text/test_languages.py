"""A model's code from those that users give, and sentences that put together are the text again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES as MBART50
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB

from padserve.errors import UnknownLanguage
from padserve.text.languages import LanguageCodes, is_one_language
from padserve.text.split import split_sentences

M2M100 = ("ar", "en", "fr", "he", "no", "pt", "sr", "zh")


@pytest.mark.parametrize(
    ("codes", "given_code", "own"),
    [
        (MBART50, "fr_XX", "fr_XX"),
        (MBART50, "FR-xx", "fr_XX"),
        (MBART50, "fr", "fr_XX"),
        (MBART50, "fra", "fr_XX"),
        (MBART50, "fr-FR", "fr_XX"),
        (MBART50, "zh-Hans", "zh_CN"),
        (MBART50, "pt-BR", "pt_XX"),
        (NLLB, "fr", "fra_Latn"),
        (NLLB, "fr-CA", "fra_Latn"),
        (NLLB, "zh", "zho_Hans"),
        (NLLB, "zh-TW", "zho_Hant"),
        (NLLB, "ar", "arb_Arab"),
        (NLLB, "fa", "pes_Arab"),
        (NLLB, "no", "nob_Latn"),
        (NLLB, "sw", "swh_Latn"),
        (NLLB, "ks-Deva", "kas_Deva"),
        (M2M100, "iw", "he"),
        (M2M100, "nb", "no"),
        (M2M100, "por", "pt"),
        (("pt", "pt_br", "pt_ao"), "pt-BR", "pt_br"),
        (("pt_br", "pt"), "pt-PT", "pt"),
    ],
)
def test_codes_that_name_a_language(codes: tuple[str, ...], given_code: str, own: str) -> None:
    assert LanguageCodes(codes).find(given_code, "source_lang") == own


@pytest.mark.parametrize(
    "wrong", ["klingon", "xx", "", " ", "fr fr", "sr-Latn", "zh-Hant", "da", "gl", "en-", "\ud83d", "x" * 500]
)
def test_codes_that_do_not(wrong: str) -> None:
    with pytest.raises(UnknownLanguage) as caught:
        LanguageCodes(M2M100).find(wrong, "source_lang")
    assert caught.value.extra["languages"] == list(M2M100)
    assert "ar, en, fr" in caught.value.message
    assert caught.value.message.startswith("source_lang")


def test_groups_are_no_language() -> None:
    assert all(map(is_one_language, ("en", "fra", "pt_br", "nb")))
    assert not any(map(is_one_language, ("roa", "mul", "gmq", "ROMANCE", "NORTH_EU", "")))


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("A cat sat.  A dog ran!\n\n  It slept\r\n\r\nthe end ", ["A cat sat.", "A dog ran!", "It slept", "the end"]),
        ("Dr. Smith costs 3.50. Yes.", ["Dr. Smith costs 3.50.", "Yes."]),
        ("one", ["one"]),
        (" \n ", [" \n "]),
        ("", [""]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text, "en_XX")[0] == sentences


@given(
    st.text(st.sampled_from("aB. ?!\n\r\t\u2028。😀\u00a0\x1c\x85")), st.sampled_from(["en", "zh_CN", "fra_Latn", "?"])
)
def test_sentences_and_gaps_are_the_text(text: str, language: str) -> None:
    sentences, gaps = split_sentences(text, language)
    assert len(gaps) == len(sentences) + 1
    assert "".join(gap + sentence for gap, sentence in zip(gaps, sentences, strict=False)) + gaps[-1] == text
    assert all(not gap.strip() for gap in gaps)
    assert all(sentence == sentence.strip() and sentence for sentence in sentences) or sentences == [text]
