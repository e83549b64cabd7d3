"""The socket between the front and a shard, and the journal of the connections that a shard serves."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from pipeline.messages.shards import ALL, METRICS, NEEDS_FRONT, RECALL, SERVE, Channel, Journal

Ends = tuple[Channel, Channel]


@pytest.fixture
def ends() -> Iterator[Ends]:
    front, shard = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with front, shard:
        yield Channel(front), Channel(shard)


def test_packets_arrive_one_by_one_with_kind_and_number(ends: Ends) -> None:
    front, shard = ends
    assert front.send(RECALL, ALL) is True
    assert front.send(NEEDS_FRONT, 7) is True
    assert shard.receive() == (RECALL, ALL, b"", None)
    assert shard.receive() == (NEEDS_FRONT, 7, b"", None)
    assert shard.receive() is None


def test_a_connection_comes_along_with_its_packet_and_is_not_inherited(ends: Ends) -> None:
    front, shard = ends
    client, server = socket.socketpair()
    with client:
        with server:
            assert front.send(SERVE, 3, server) is True
        packet = shard.receive()
        assert packet is not None
        kind, slot, metrics, connection = packet
        assert (kind, slot, metrics) == (SERVE, 3, b"")
        assert connection is not None
        with connection:
            assert not connection.get_inheritable()
            client.sendall(b"request")
            assert connection.recv(100) == b"request"


def test_metrics_arrive_whole(ends: Ends) -> None:
    front, shard = ends
    metrics = bytes(range(256)) * 400
    assert shard.send_metrics(metrics) is True
    assert front.receive() == (METRICS, 0, metrics, None)


def test_a_full_buffer_sends_nothing_and_does_not_block(ends: Ends) -> None:
    front, shard = ends
    client, server = socket.socketpair()
    with client, server:
        count = 0
        while front.send(RECALL, count):
            count += 1
        assert front.send(SERVE, 1, server) is False
        assert front.send_metrics(b"{}") is False
        for number in range(count):
            assert shard.receive() == (RECALL, number, b"", None)
        assert shard.receive() is None


def test_a_dead_receiver_gets_nothing_and_a_dead_sender_is_the_end(ends: Ends) -> None:
    front, shard = ends
    shard.socket.close()
    assert front.send(RECALL, 1) is False
    assert front.send_metrics(b"{}") is False
    with pytest.raises(EOFError):
        front.receive()


def test_a_closed_socket_is_the_end(ends: Ends) -> None:
    front, _ = ends
    front.socket.close()
    with pytest.raises(EOFError):
        front.receive()


def test_both_sides_of_the_journal_see_the_mark_of_a_slot() -> None:
    journal = Journal.create(3)
    with closing(os.fdopen(journal.fd, "rb")):
        assert (journal.slots, os.fstat(journal.fd).st_size) == (3, 3)
        assert not os.get_inheritable(journal.fd)
        other = Journal(journal.fd, 3)
        assert [journal.is_answering(slot) for slot in range(3)] == [False, False, False]
        other.begin_answer(1)
        assert [journal.is_answering(slot) for slot in range(3)] == [False, True, False]
        journal.end_answer(1)
        assert [other.is_answering(slot) for slot in range(3)] == [False, False, False]
