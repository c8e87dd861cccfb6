"""Who holds which block of the KV cache: counts, copy on write, and prompts that requests share. No tensors.

A block holds the keys and values of ``block_size`` consecutive tokens, for every layer. A sequence's table lists its
blocks in order. Beams and samples of one prompt hold the same blocks; one that is about to write into a block that
others hold gets a copy. Full blocks of prompts stay findable by their tokens, and by all tokens before, after their
last holder has left, until the space is needed.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

ROOT = 0
RESERVED = 1
"""Block 0 is never given out: it stays zero, so that what is masked there is finite."""


@dataclass(slots=True)
class Table:
    """A sequence's blocks. ``computed``: tokens whose keys and values are there."""

    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    keys: list[int] = field(default_factory=list)  # of the leading full blocks that are findable


class OutOfBlocks(Exception):
    """No block is free; the scheduler must preempt."""


class BlockPool:
    """``num_blocks``: all there are, the reserved one included."""

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool = True) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._prefix_caching = prefix_caching
        self._free = list(range(num_blocks - 1, RESERVED - 1, -1))
        self._holders = [0] * num_blocks
        self._block_of: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}  # (parent key, tokens) -> (key, block)
        self._name_of: dict[int, tuple[int, tuple[int, ...]]] = {}  # block -> (parent key, tokens)
        self._idle: OrderedDict[int, None] = OrderedDict()  # findable blocks that nobody holds, oldest first
        self._next_key = ROOT + 1

    @property
    def used(self) -> int:
        """Blocks that some sequence holds."""
        return self.num_blocks - RESERVED - self.available

    @property
    def available(self) -> int:
        """Blocks that can be given out, those of the prefix cache included."""
        return len(self._free) + len(self._idle)

    @property
    def cached(self) -> int:
        """Findable blocks that nobody holds."""
        return len(self._idle)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def find_prefix(self, tokens: Sequence[int]) -> Table:
        """The blocks whose tokens the prompt starts with, held now; one token at least stays to be computed."""
        table = Table()
        if not self._prefix_caching:
            return table
        parent, size = ROOT, self.block_size
        for start in range(0, len(tokens) - size, size):
            found = self._block_of.get((parent, tuple(tokens[start : start + size])))
            if found is None:
                break
            parent, block = found
            self._hold(block)
            table.blocks.append(block)
            table.keys.append(parent)
            table.computed += size
        return table

    def extend(self, table: Table, tokens: int) -> list[tuple[int, int]]:
        """Make room for ``tokens`` in all. Returns the (from, to) blocks to copy before anything is written.

        Errors: `OutOfBlocks`; the table is as it was then.
        """
        first_written = table.computed // self.block_size
        shared = [place for place in range(first_written, len(table.blocks)) if self._holders[table.blocks[place]] > 1]
        missing = max(self.blocks_for(tokens) - len(table.blocks), 0)
        if len(shared) + missing > self.available:
            raise OutOfBlocks
        for block in table.blocks[first_written:]:
            if self._holders[block] == 1:
                self._forget(block)  # it was rolled back, and what is written there now is something else
        copies = []
        for place in shared:
            old, new = table.blocks[place], self._take()
            copies.append((old, new))
            self._holders[old] -= 1
            table.blocks[place] = new
        table.blocks += [self._take() for _ in range(missing)]
        return copies

    def fork(self, table: Table) -> Table:
        """A table that shares all blocks."""
        for block in table.blocks:
            self._holders[block] += 1
        return Table(list(table.blocks), table.computed, list(table.keys))

    def roll_back(self, table: Table, computed: int) -> None:
        """Forget tokens from ``computed`` on, and give back the blocks that held nothing else."""
        table.computed = min(table.computed, computed)
        keep = self.blocks_for(table.computed)
        for block in table.blocks[keep:]:
            self._release(block)
        del table.blocks[keep:]
        del table.keys[table.computed // self.block_size :]

    def free(self, table: Table) -> None:
        """Give back every block. Calling it again does nothing."""
        for block in reversed(table.blocks):
            self._release(block)
        table.blocks, table.keys, table.computed = [], [], 0

    def publish(self, table: Table, tokens: Sequence[int]) -> None:
        """Make the full blocks of a sequence findable by its ``tokens``."""
        if not self._prefix_caching:
            return
        size = self.block_size
        for place in range(len(table.keys), min(table.computed, len(tokens)) // size):
            parent = table.keys[-1] if table.keys else ROOT
            name = (parent, tuple(tokens[place * size : (place + 1) * size]))
            known = self._block_of.get(name)
            if known is None:
                known = self._next_key, table.blocks[place]
                self._next_key += 1
                self._block_of[name] = known
                self._name_of[table.blocks[place]] = name
            table.keys.append(known[0])

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
        self._holders[block] = 1
        return block

    def _forget(self, block: int) -> None:
        name = self._name_of.pop(block, None)
        if name is not None:
            del self._block_of[name]

    def _hold(self, block: int) -> None:
        self._idle.pop(block, None)
        self._holders[block] += 1

    def _release(self, block: int) -> None:
        self._holders[block] -= 1
        if self._holders[block] > 0:
            return
        if block in self._name_of:
            self._idle[block] = None
        else:
            self._free.append(block)
