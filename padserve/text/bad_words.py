"""Words that may not be said, as tokens."""

from collections.abc import Callable, Iterable

Ids = tuple[int, ...]


def bad_word_ids(ids_of: Callable[[str], Ids], words: Iterable[str]) -> tuple[Ids, ...]:
    """Token sequences that spell the words at the start of a text and after a space. ``ids_of``: a text's own tokens.

    A space before a word is tried in the middle of a text too: SentencePiece puts a space of its own before a text, so
    that a text of a space and a word has two.
    """
    before = ids_of("a")
    found: list[Ids] = []
    for word in filter(None, words):
        found += [ids_of(word), ids_of(f" {word}")]
        within = ids_of(f"a {word}")
        if before and within[: len(before)] == before:
            found.append(within[len(before) :])
    return tuple(dict.fromkeys(one for one in found if one))
