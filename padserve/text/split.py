"""Sentences of a text, by sentencex."""

import re

import sentencex

from padserve.text.languages import parsed

LINE = re.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")


def split_sentences(text: str, language: str) -> tuple[list[str], tuple[str, ...]]:
    """Sentences without outer spaces, and what stands before, between and behind them: together they are the text.

    A line break ends a sentence. A text of spaces is one sentence. ``language``: any code; its rules are those of its
    language, else English ones.
    """
    tag = parsed(language)
    rules = "en" if tag is None or tag.language is None else tag.language
    sentences, gaps, end = [], [], 0
    for line in LINE.finditer(text):
        place = line.start()
        for piece in sentencex.segment(rules, line[0]):
            sentence = piece.strip()
            if sentence:
                start = place + piece.index(sentence)
                gaps.append(text[end:start])
                sentences.append(sentence)
                end = start + len(sentence)
            place += len(piece)
    return (sentences, (*gaps, text[end:])) if sentences else ([text], ("", ""))
