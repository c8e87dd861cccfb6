"""Cache accounting: no block is lost or given twice, writers get copies, prompts are found again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padserve.generate.blocks import RESERVED, BlockPool, OutOfBlocks, Table

SIZE = 4


def write(pool: BlockPool, table: Table, tokens: int) -> list[tuple[int, int]]:
    copies = pool.extend(table, tokens)
    table.computed = tokens
    return copies


def test_room_is_made_and_given_back() -> None:
    pool = BlockPool(10, SIZE)
    table = Table()
    assert write(pool, table, 5) == []
    assert (len(table.blocks), pool.used) == (2, 2)
    write(pool, table, 8)
    assert pool.used == 2
    pool.free(table)
    pool.free(table)
    assert (pool.used, pool.available) == (0, 9)


def test_the_reserved_block_is_never_given() -> None:
    pool, table = BlockPool(6, SIZE), Table()
    write(pool, table, 5 * SIZE)
    assert 0 not in table.blocks
    assert RESERVED == 1
    with pytest.raises(OutOfBlocks):
        pool.extend(table, 5 * SIZE + 1)
    assert len(table.blocks) == 5


def test_a_fork_copies_only_the_block_that_it_writes_into() -> None:
    pool, first = BlockPool(20, SIZE), Table()
    write(pool, first, 10)
    second = pool.fork(first)
    assert pool.used == 3
    old = first.blocks[2]
    ((source, target),) = write(pool, second, 11)
    assert (source, second.blocks[2]) == (old, target)
    assert second.blocks[:2] == first.blocks[:2]
    assert write(pool, first, 11) == []  # the last holder needs no copy
    pool.free(first)
    pool.free(second)
    assert pool.used == 0


def test_a_full_block_needs_no_copy() -> None:
    pool, first = BlockPool(20, SIZE), Table()
    write(pool, first, 8)
    second = pool.fork(first)
    assert write(pool, second, 9) == []
    assert pool.used == 3


def test_a_prompt_is_found_again_but_for_its_last_token() -> None:
    pool, prompt, table = BlockPool(20, SIZE), list(range(12)), Table()
    write(pool, table, 12)
    pool.publish(table, prompt)
    pool.free(table)
    assert (pool.used, pool.cached) == (0, 3)
    found = pool.find_prefix(prompt)
    assert found.computed == 8
    assert pool.find_prefix([*prompt, 99]).computed == 12
    assert pool.find_prefix([*prompt[:7], 99, *prompt[8:]]).computed == 4
    assert pool.find_prefix([99, *prompt[1:]]).computed == 0


def test_equal_tokens_after_unequal_ones_are_another_prompt() -> None:
    pool, table = BlockPool(20, SIZE), Table()
    write(pool, table, 8)
    pool.publish(table, [1, 1, 1, 1, 2, 2, 2, 2])
    assert pool.find_prefix([3, 3, 3, 3, 2, 2, 2, 2, 0]).computed == 0


def test_cached_prompts_make_room() -> None:
    pool, table = BlockPool(4, SIZE), Table()
    write(pool, table, 12)
    pool.publish(table, list(range(12)))
    pool.free(table)
    other = Table()
    write(pool, other, 12)
    assert pool.cached == 0
    assert pool.find_prefix([*range(12), 0]).computed == 0


def test_no_prefix_caching() -> None:
    pool, table = BlockPool(10, SIZE, prefix_caching=False), Table()
    write(pool, table, 8)
    pool.publish(table, list(range(8)))
    pool.free(table)
    assert (pool.cached, pool.find_prefix(list(range(9))).computed) == (0, 0)


def test_what_is_rolled_back_is_not_found() -> None:
    pool, table = BlockPool(10, SIZE), Table()
    write(pool, table, 8)
    pool.publish(table, list(range(8)))
    pool.roll_back(table, 6)
    write(pool, table, 8)
    found = pool.find_prefix([*range(8), 0])
    assert found.computed == 4
    pool.free(found)
    pool.roll_back(table, 0)
    assert (table.blocks, pool.used) == ([], 0)


def test_a_block_that_its_last_holder_writes_again_is_not_found() -> None:
    """It was shared when it was rolled back, and is no more when it is written."""
    pool, table = BlockPool(10, SIZE), Table()
    write(pool, table, 8)
    pool.publish(table, list(range(8)))
    other = pool.fork(table)
    pool.roll_back(table, 6)
    pool.free(other)
    assert write(pool, table, 8) == []
    assert pool.find_prefix([*range(8), 0]).computed == 4


actions = st.lists(
    st.tuples(
        st.sampled_from(["start", "grow", "fork", "free", "roll_back", "publish"]),
        st.integers(0, 30),
        st.integers(1, 9),
    ),
    max_size=120,
)


@settings(max_examples=200, deadline=None)
@given(actions, st.integers(4, 30))
def test_blocks_are_neither_lost_nor_given_twice(given: list[tuple[str, int, int]], num_blocks: int) -> None:
    pool = BlockPool(num_blocks, SIZE)
    tables: list[tuple[Table, list[int]]] = []
    for action, which, amount in given:
        if action == "start":
            tokens = [which % 3] * amount
            tables.append((pool.find_prefix(tokens), tokens))
        elif tables:
            table, tokens = tables[which % len(tables)]
            if action == "grow":
                before = list(table.blocks)
                try:
                    copies = pool.extend(table, table.computed + amount)
                except OutOfBlocks:
                    assert table.blocks == before
                else:
                    tokens += [amount] * (table.computed + amount - len(tokens))
                    written = table.blocks[table.computed // SIZE :]
                    others = {block for other, _ in tables if other is not table for block in other.blocks}
                    assert not others & set(written), "a block that another one holds would be written"
                    assert {new for _, new in copies} <= set(written)
                    table.computed += amount
            elif action == "fork":
                tables.append((pool.fork(table), list(tokens)))
            elif action == "roll_back":
                pool.roll_back(table, amount)
                del tokens[table.computed :]
            elif action == "publish":
                pool.publish(table, tokens)
            else:
                pool.free(table)
                tables = [pair for pair in tables if pair[0] is not table]
        held = {block for table, _ in tables for block in table.blocks}
        assert 0 not in held
        assert pool.used == len(held)
        for table, _ in tables:
            assert len(set(table.blocks)) == len(table.blocks)
            assert len(table.blocks) * SIZE >= table.computed
    for table, _ in tables:
        pool.free(table)
    assert pool.used == 0
    assert pool.available == num_blocks - 1


class Contents:
    """A pool whose blocks really hold tokens, and sequences that write, fork, verify drafts and take them back."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, SIZE)
        self.blocks: list[list[int]] = [[0] * SIZE for _ in range(num_blocks)]
        self.rows: list[tuple[Table, list[int]]] = []

    def start(self, tokens: list[int]) -> None:
        table = self.pool.find_prefix(tokens)
        self.rows.append((table, tokens[: table.computed]))

    def write(self, row: int, tokens: list[int]) -> None:
        table, known = self.rows[row]
        try:
            copies = self.pool.extend(table, len(known) + len(tokens))
        except OutOfBlocks:
            return
        for source, target in copies:
            self.blocks[target] = list(self.blocks[source])
        for place, token in enumerate(tokens, len(known)):
            self.blocks[table.blocks[place // SIZE]][place % SIZE] = token
        known += tokens
        table.computed = len(known)

    def take_back(self, row: int, count: int) -> None:
        table, known = self.rows[row]
        del known[max(len(known) - count, 0) :]
        self.pool.roll_back(table, len(known))

    def read(self, row: int) -> list[int]:
        table = self.rows[row][0]
        return [self.blocks[table.blocks[place // SIZE]][place % SIZE] for place in range(table.computed)]


verified = st.lists(
    st.tuples(
        st.sampled_from(["start", "write", "take_back", "fork", "publish", "free"]),
        st.integers(0, 9),
        st.lists(st.integers(1, 2), min_size=1, max_size=9),
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(verified, st.integers(6, 30))
def test_every_sequence_reads_what_it_wrote(actions: list[tuple[str, int, list[int]]], num_blocks: int) -> None:
    """Also after drafts that were taken back, in blocks that others share or may find."""
    held = Contents(num_blocks)
    for action, which, tokens in actions:
        row = which % len(held.rows) if held.rows else 0
        if action == "start":
            held.start(tokens)
        elif not held.rows:
            continue
        elif action == "write":
            held.write(row, tokens)
        elif action == "take_back":
            held.take_back(row, len(tokens))
        elif action == "fork":
            table, known = held.rows[row]
            held.rows.append((held.pool.fork(table), list(known)))
        elif action == "publish":
            held.pool.publish(*held.rows[row])
        else:
            held.pool.free(held.rows.pop(row)[0])
        for place, (table, known) in enumerate(held.rows):
            assert held.read(place) == known
            assert len(table.blocks) == held.pool.blocks_for(table.computed)
        assert held.pool.used == len({block for table, _ in held.rows for block in table.blocks})
    for table, _ in held.rows:
        held.pool.free(table)
    assert held.pool.available == num_blocks - 1
