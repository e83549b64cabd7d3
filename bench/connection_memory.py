"""Resident memory of the front while gRPC connections are opened and closed many times."""

from __future__ import annotations

import argparse
import contextlib
import socket
import time
from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.processes import resident_mb
from bench.running import ROOT, default_config, running_service
from tests.fuzz import http2
from tests.support.service_process import ServiceProcess

_ANSWER_S = 30.0


class Round(NamedTuple):
    """Memory of the front in MB. later: some seconds after the connections were closed."""

    open: float
    closed: float
    later: float


def rounds(service: ServiceProcess, connections: int, times: int, pause_s: float) -> Iterator[Round]:
    port = service.rpc_port
    for _ in range(times):
        with contextlib.ExitStack() as opened:
            for _ in range(connections):
                client = opened.enter_context(socket.create_connection(("127.0.0.1", port), _ANSWER_S))
                client.sendall(http2.opening())
                client.recv(65536)
            full = resident_mb(service.process.pid)
        time.sleep(1)  # the front has to notice
        closed = resident_mb(service.process.pid)
        time.sleep(pause_s)
        yield Round(full, closed, resident_mb(service.process.pid))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.connection_memory",
        description=__doc__,
        epilog="example: python -m bench.connection_memory --connections 1000 --rounds 3",
    )
    parser.add_argument("--connections", type=int, default=9000, help="without a call (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--pause", type=float, default=11, help="seconds after each (default: %(default)s)")
    options = parser.parse_args()
    table = Table("", "ready", "open", "closed", "later", title="resident memory of the front, MB")
    with running_service(ROOT / "web_service.py", default_config()) as service:
        ready = resident_mb(service.process.pid)
        for number, sizes in enumerate(rounds(service, options.connections, options.rounds, options.pause)):
            table.add_row(str(number + 1), f"{ready:.0f}", *(f"{mb:.0f}" for mb in sizes))
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
