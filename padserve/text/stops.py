"""Stop strings in a text that comes in pieces: found across pieces, none of it given out, nothing else held back."""

from collections import deque
from collections.abc import Sequence

from padserve.text.detokenize import Detokenizer
from padserve.text.tokenizer import Tokenizer


class StopStrings:
    """An automaton (Aho and Corasick 1975). A state is the longest end of the text that begins one of the strings.

    ``depth``: how long that end is. ``found``: the length of the longest string that ends here, 0 for none.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._shorter = [0]
        self.depth, self.found = [0], [0]
        for string in strings:
            self._add(string)
        self._link()

    def step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(character, 0)

    def _add(self, string: str) -> None:
        state = 0
        for character in string:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._shorter.append(0)
                self.depth.append(self.depth[state] + 1)
                self.found.append(0)
            state = self._next[state][character]
        self.found[state] = len(string)

    def _link(self) -> None:
        """Give each state the next shorter end that begins a string."""
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for character, following in self._next[state].items():
                shorter = self._shorter[following] = self.step(self._shorter[state], character)
                self.found[following] = self.found[following] or self.found[shorter]
                waiting.append(following)


class StopMatcher:
    """The text before the stop string that starts first. ``found``: whether there is one."""

    def __init__(self, strings: StopStrings) -> None:
        self._strings, self._state = strings, 0
        self._held = ""  # text that may belong to a stop string
        self._start: int | None = None  # where one starts in it

    @property
    def found(self) -> bool:
        return self._start is not None

    def fork(self) -> "StopMatcher":
        other = StopMatcher(self._strings)
        other._state, other._held, other._start = self._state, self._held, self._start
        return other

    def push(self, text: str) -> str:
        """Text that is certain to stand before any stop string, however the text goes on."""
        end = len(self._held)
        for character in text:
            self._state = self._strings.step(self._state, character)
            end += 1
            if length := self._strings.found[self._state]:
                self._start = min(end - length, end if self._start is None else self._start)
        self._held += text
        begins = end - self._strings.depth[self._state]
        return self._give(begins if self._start is None else min(begins, self._start))

    def finish(self) -> str:
        """The rest, now that no text follows."""
        return self._give(len(self._held) if self._start is None else self._start)

    def _give(self, end: int) -> str:
        given, self._held = self._held[:end], self._held[end:]
        if self._start is not None:
            self._start -= end
        return given


class WatchedText:
    """The text of a row's tokens, watched for stop strings. ``lead``: tokens before it, in which none is looked for."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], lead: Sequence[int] = ()) -> None:
        self._detokenizer, self._matcher = Detokenizer(tokenizer), StopMatcher(StopStrings(stop))
        self._detokenizer.push(*lead)
        self.tokens = 0  # so many have been taken in

    def fork(self) -> "WatchedText":
        other = WatchedText.__new__(WatchedText)
        other._detokenizer, other._matcher = self._detokenizer.fork(), self._matcher.fork()
        other.tokens = self.tokens
        return other

    def push(self, token: int) -> None:
        self._matcher.push(self._detokenizer.push(token))
        self.tokens += 1

    @property
    def stopped(self) -> bool:
        """Whether the text, as it reads if it ends here, holds a stop string."""
        if self._matcher.found:
            return True
        rest = self._detokenizer.rest()
        if not rest:
            return False
        end = self._matcher.fork()
        end.push(rest)
        return end.found
