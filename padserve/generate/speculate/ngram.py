"""Drafts by looking up: what came after the longest earlier place that ends as the text ends now (prompt lookup, Saxena
2023). Of places that match equally far the latest counts, and a match may run into the text's own end, as in LZ77.
"""

from collections.abc import Sequence
from typing import Self

from padserve.core import GenerationOptions, SpeculationSpec

SHORTEST, LONGEST = 2, 16
"""Tokens that must match, and beyond which a match counts as no better."""
REACH = 2
"""Tokens that are guessed for each one that matches, at most."""
CANDIDATES = 32
"""Earlier places that are looked at in a step, latest first."""
BREAK = -1
"""Stands between a source and the output: equal to no token."""


class NgramIndex:
    """A growing text and, for each place in it, the one before that ends with the same two tokens. Adding a token and
    finding a match each take a bounded time, however long the text is."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self._earlier: list[int] = []  # by place: the end before it that has the same two tokens, 0 for none
        self._latest: dict[tuple[int, int], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        text = self.text
        for token in tokens:
            text.append(token)
            end, place = len(text), 0
            if end >= SHORTEST:
                pair = (text[-2], token)
                place = self._latest.get(pair, 0)
                self._latest[pair] = end
            self._earlier.append(place)

    def find(self) -> tuple[int, int]:
        """The end of the best match and its length, (0, 0) where there is none."""
        best, length = 0, 0
        place = self._earlier[-1] if self.text else 0
        for _ in range(CANDIDATES):
            if place == 0 or length == LONGEST:
                break
            found = self._match(place)
            if found > length:
                best, length = place, found
            place = self._earlier[place - 1]
        return best, length

    def _match(self, end: int) -> int:
        """How many tokens before ``end`` are the text's last ones."""
        text, length = self.text, SHORTEST
        while length < min(LONGEST, end) and text[end - 1 - length] == text[-1 - length]:
            length += 1
        return length

    def after(self, end: int, count: int) -> list[int]:
        """So many tokens from ``end`` on, those that they stand for where the text ends, up to a break."""
        found: list[int] = []
        period = len(self.text) - end
        for offset in range(count):
            token = self.text[end + offset % period]
            if token == BREAK:
                break
            found.append(token)
        return found


class NgramDrafter:
    """Drafts grow while they come true. One that is wrong from its start makes the next one short, and the match longer
    that is asked for, so that text which only seems to repeat itself costs little. ``lead``: looked up as well."""

    def __init__(self, most: int, lead: Sequence[int] = ()) -> None:
        self._index = NgramIndex()
        self._index.extend([*lead, BREAK] if lead else [])
        self._before = len(self._index.text)
        self._most, self._length, self._asked = most, most, SHORTEST

    @classmethod
    def of(cls, options: GenerationOptions, spec: SpeculationSpec) -> Self:
        source = options.source if spec.reads_source else None
        return cls(spec.max_draft_tokens, source or ())

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        self._index.extend(tokens[len(self._index.text) - self._before :])
        end, length = self._index.find()
        if length < self._asked:
            return []
        return self._index.after(end, min(most, self._length, REACH * length))

    def learn(self, drafted: int, accepted: int) -> None:
        if accepted == 0:
            self._length, self._asked = 1, min(self._asked + 1, LONGEST)
            return
        whole = accepted == drafted
        self._length = min(2 * self._length if whole else accepted + 1, self._most)
        self._asked = max(self._asked - 1, SHORTEST) if whole else self._asked
