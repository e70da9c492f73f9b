"""Messages and arrays between processes: lines in both directions, deadlines, ends, memory that grows under its readers."""

from __future__ import annotations

import os
import socket
import time

import numpy as np
import pytest
from drivers import nothing_more_than, shared_memory

from shoal.errors import DeadlineError
from shoal.runtime.wire import Gone, Layout, Line, Pages, Slots, tagged, untagged


@pytest.fixture
def lines():
    a, b = (Line(end) for end in socket.socketpair())
    yield a, b
    a.close()
    b.close()


def test_messages_come_whole_and_in_order(lines):
    a, b = lines
    sent = [{"is": "make", "seq": i, "text": "ü\n" * i} for i in range(5)]
    for message in sent:
        a.send(message, 1.0)
    assert [b.receive(1.0) for _ in sent] == sent
    assert b.receive(0.0) is None


def test_waiting_ends_at_the_deadline(lines):
    a, b = lines
    begun = time.monotonic()
    assert b.receive(0.05) is None
    assert 0.04 < time.monotonic() - begun < 5
    with pytest.raises(DeadlineError):
        for _ in range(100):
            a.send({"text": "x" * 100_000}, 0.01)  # nobody reads


def test_the_end_of_a_peer_is_seen_after_its_last_words(lines):
    a, b = lines
    a.send({"is": "error"}, 1.0)
    a.close()
    assert b.receive(1.0) == {"is": "error"}
    with pytest.raises(Gone):
        b.receive(1.0)
    with pytest.raises(Gone):
        for _ in range(3):
            b.send({"is": "make"}, 1.0)


def test_a_reader_follows_memory_that_grew():
    writer = Pages(100)
    reader, slots = Pages(fd=os.dup(writer.fd)), Slots(writer)
    small = [np.arange(5, dtype=np.int32), np.float32(3.5).reshape(()), np.zeros((0, 4), bool)]
    large = [np.arange(100_000, dtype=np.float64), np.ones((3, 7), np.uint8)]
    at_small, layout = slots.write("a", small)
    early = layout.views(reader, at_small)
    at_large, other = slots.write("b", large)
    assert other.size > 800_000 and reader.size < at_large + other.size  # it has not looked yet
    for got, put in zip([*early, *Layout.read(other.kinds).views(reader, at_large)], [*small, *large], strict=True):
        assert got.dtype == put.dtype and got.shape == put.shape
        np.testing.assert_array_equal(got, put)
    slots.write("a", [x + 1 for x in small[:2]] + small[2:])
    np.testing.assert_array_equal(early[0], small[0] + 1)  # the same memory, seen through the old view
    for pages in (reader, writer):
        pages.close()


def test_slots_do_not_overlap_whatever_they_held_before():
    pages = Pages()
    slots, draw = Slots(pages), np.random.default_rng(0)
    held: dict[int, tuple] = {}
    for _ in range(60):
        name, arrays = int(draw.integers(4)), [draw.normal(size=int(draw.integers(1, 3000))) for _ in range(3)]
        held[name] = *slots.write(name, arrays), arrays
        for at, layout, put in held.values():
            for got, wanted in zip(layout.views(pages, at), put, strict=True):
                np.testing.assert_array_equal(got, wanted)
    pages.close()


def test_nothing_shared_has_a_name():
    before = shared_memory()
    pages = Pages(1 << 20)
    nothing_more_than(before)
    pages.close()


def test_plain_data_keeps_its_kinds():
    data = {"hidden": (64, 64), "list": [1, (2, [3.5])], "table": {"tuple": (), "a": None}, "x": float("inf"), "on": True, "name": "n"}
    assert untagged(tagged(data)) == data
    assert isinstance(untagged(tagged(data))["hidden"], tuple) and isinstance(untagged(tagged(data))["list"], list)
