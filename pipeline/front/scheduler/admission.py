"""Admission: decides which requests the service accepts, and the order of its clients."""

from __future__ import annotations

import hmac
import logging
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar

from pipeline.api.dag import Dag
from pipeline.config.api_keys import ApiKey, hash_key, is_readable_by_others, read_api_keys
from pipeline.config.config_file import SecurityConfig
from pipeline.errors import DeadlineExceeded, Overloaded, Unauthenticated
from pipeline.front.dag_run import Client, FairQueue, Request
from pipeline.front.scheduler.batcher import Batcher

MARGIN = 1.5  # run times vary, and an optimistic estimate admits requests that miss their deadline
MAX_PAUSE_S, SHORTEST_PAUSE_S = 60.0, 0.1
RECKONED_S = 0.005  # a wait that is told with one decimal is not reckoned for each refusal
_UNKNOWN_PAUSE_S = 1.0


class Admission:
    """Bounds pending requests, and compares each request's expected wait with its deadline.

    The expected wait of an Op is the rows of its queue times the time of a row, shared among its instances.
    A request that finds an idle instance in every Op on its way is never refused. Such requests correct a
    wrong estimate, and without an estimate no request is refused.
    """

    def __init__(self, queues: Mapping[str, Batcher], max_pending: int, max_rows: int = 1_000_000) -> None:
        """queues: by Op; may be filled by its owner until the first request. max_rows: most pending rows; a
        request that is alone may have more.
        """
        self.fair_queue = FairQueue()
        self._queues = queues
        self._max_pending = max_pending
        self._max_rows = max_rows
        self._rows = 0  # of the pending requests
        # A request that has more time than these is in time:
        self._per_row_s = 0.0  # for each row that may be pending
        self._runs_s = 0.0  # for its own runs
        self._mixed = False  # whether requests of a lower priority have been seen
        self._reckoned_s = 0.0  # see `_wait_when_full_s`
        self._reckoned_dag: Dag | None = None
        self._reckoned_until = 0.0

    def admit(self, request: Request, dag: Dag, client: Client, pending: int) -> int:
        """Count the request as one of this client's that is pending; returns its turn.

        dag: its way. pending: how many requests are in all. Raises Overloaded and DeadlineExceeded.
        """
        if client.limited:
            client.check()
        if pending >= self._max_pending and not self._made_room(request, dag, client):
            wait_s = self._wait_when_full_s(dag)
            raise Overloaded(
                f"{pending} requests are pending, the most that dag.max_pending_requests allows; "
                f"try again in {wait_s:.1f} s",
                retry_after_s=wait_s,
            )
        if self._rows and self._rows + request.rows > self._max_rows:
            wait_s = self._wait_when_full_s(dag)
            raise Overloaded(
                f"requests with {self._rows} rows are pending, and dag.max_pending_rows is {self._max_rows}; "
                f"try again in {wait_s:.1f} s",
                retry_after_s=wait_s,
            )
        if request.priority:
            self._mixed = True
        remaining_s = request.deadline - time.monotonic()
        rows = self._rows if self._rows > self._max_pending else self._max_pending
        if remaining_s < rows * self._per_row_s + self._runs_s or remaining_s <= 0.0:
            self._compare(request, dag, client, pending, remaining_s)
        self._rows += request.rows
        return self.fair_queue.admit(client)

    def end(self, request: Request, client: Client) -> None:
        """The request is not pending any more."""
        self._rows -= request.rows
        self.fair_queue.end(client)

    def update_paces(self) -> None:
        """Compute the limits for waits again, after the pace of an Op has changed."""
        paces = [queue.pace for queue in self._queues.values()]
        self._per_row_s = MARGIN * sum(pace.per_row_s for pace in paces)
        self._runs_s = MARGIN * sum(pace.run_s for pace in paces)

    def _compare(self, request: Request, dag: Dag, client: Client, pending: int, remaining_s: float) -> None:
        if remaining_s <= 0.0:
            raise DeadlineExceeded("the request's deadline had passed when it arrived")
        if all(self._queues[op].idle for op in dag.ops):
            return
        expected_s = MARGIN * self._finish_s(dag, pending, None)
        turn = self.fair_queue.next(client)
        if expected_s > remaining_s and (self._mixed or turn < self.fair_queue.latest):
            place = request.priority, turn + 1  # not behind all that wait
            expected_s = MARGIN * self._finish_s(dag, pending, place)
        if expected_s > remaining_s:
            wait_s = _pause(expected_s - remaining_s)
            raise Overloaded(
                f"the answer is expected in {expected_s:.3f} s, and the request has {remaining_s:.3f} s left "
                f"until its deadline; try again in {wait_s:.1f} s",
                retry_after_s=wait_s,
            )

    def _wait_when_full_s(self, dag: Dag) -> float:
        """How long callers wait where as many are pending as may be; reckoned every RECKONED_S."""
        now = time.monotonic()
        if now >= self._reckoned_until or dag is not self._reckoned_dag:
            self._reckoned_until, self._reckoned_dag = now + RECKONED_S, dag
            self._reckoned_s = _pause(self._finish_s(dag, self._max_pending, None) or _UNKNOWN_PAUSE_S)
        return self._reckoned_s

    def _made_room(self, request: Request, dag: Dag, client: Client) -> bool:
        """Refuse a queued request of a client with more than its share. Returns whether there was one.

        It is the last request in line, so its client has queued the most.
        """
        if client.pending * max(1, self.fair_queue.clients) >= self._max_pending:
            return False
        for queue in self._queues.values():
            task = queue.last()
            if task is None or (other := task.dag_run.request.client) is None:
                continue
            if other.pending > client.pending + 1 and task.dag_run.request.priority >= request.priority:
                wait_s = self._wait_when_full_s(dag)
                task.dag_run.end(
                    Overloaded(
                        f"dag.max_pending_requests ({self._max_pending}) are pending, of this client more "
                        f"than its share; try again in {wait_s:.1f} s",
                        retry_after_s=wait_s,
                    )
                )
                return True
        return False

    def _finish_s(self, dag: Dag, pending: int, place: tuple[int, int] | None) -> float:
        """Seconds until a request that begins now is answered.

        What queues before an Op will queue before the next one, too. All Ops work at the same time, so the
        slowest makes the wait; then the request has a run in each on the longest way. Queues also hold what
        nobody waits for any more, so there are no more rows ahead than are pending.
        """
        pending_rows = max(pending, self._rows)
        ahead: dict[str, int] = {}
        runs_s: dict[str, float] = {}
        wait_s = 0.0
        for node in dag.order:
            queue = self._queues[dag.nodes[node].op]
            inputs = [name for name in dag.inputs[node] if name in ahead]
            upstream = max((ahead[name] for name in inputs), default=0)
            ahead[node] = min(pending_rows, queue.rows_ahead(place) + upstream)
            runs_s[node] = queue.pace.run_s + max((runs_s[name] for name in inputs), default=0.0)
            wait_s = max(wait_s, queue.wait_s(ahead[node]))
        return wait_s + max(runs_s.values())


def _pause(wait_s: float) -> float:
    return min(MAX_PAUSE_S, max(SHORTEST_PAUSE_S, wait_s))


log = logging.getLogger(__name__)

AUTHORIZATION, API_KEY = b"authorization", b"x-api-key"
MAX_PEERS = 1024  # then those are forgotten that wait for nothing
_HOW = "send the header 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"


class KeyClient(Client):
    """All users of the API keys of one name.

    rate: token bucket of one second's requests, filled as time goes by.
    """

    __slots__ = ("_filled_at", "_tokens", "most_pending", "rate", "refused", "requests")

    limited = True

    def __init__(self, key: ApiKey) -> None:
        super().__init__(key.name)
        self.requests = 0
        self.refused = 0
        self._filled_at = time.monotonic()
        self.take_limits(key)
        self._tokens = max(1.0, self.rate)

    def take_limits(self, key: ApiKey) -> None:
        self.most_pending, self.rate = key.pending, key.rate

    def check(self) -> None:
        """Count a request. Raises Overloaded where it is one too many."""
        self.requests += 1
        if self.most_pending and self.pending >= self.most_pending:
            self.refused += 1
            raise Overloaded(
                f"{self.pending} requests with API key {self.name!r} are pending, the most that it may have"
            )
        if self.rate:
            self._take_token(time.monotonic())

    def _take_token(self, now: float) -> None:
        self._tokens = min(max(1.0, self.rate), self._tokens + (now - self._filled_at) * self.rate)
        self._filled_at = now
        if self._tokens < 1:
            self.refused += 1
            wait_s = (1 - self._tokens) / self.rate
            raise Overloaded(
                f"more than {self.rate:g} requests a second with API key {self.name!r}; try again in "
                f"{wait_s:.1f} s",
                retry_after_s=wait_s,
            )
        self._tokens -= 1


class Peers:
    """The clients of gRPC, whose connections are known by their addresses alone."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}

    def find_client(self, peer: str) -> Client:
        client = self._clients.get(peer)
        if client is None:
            if len(self._clients) >= MAX_PEERS:
                self._clients = {name: other for name, other in self._clients.items() if other.pending}
            client = self._clients[peer] = Client()
        return client


class KeyRing:
    """The clients of `security.api_keys`. Keys are known by their digests alone."""

    def __init__(self, security: SecurityConfig) -> None:
        """Raises ConfigError for a file that can't be used."""
        self._security = security
        self._clients: dict[str, KeyClient] = {}
        self._by_digest: dict[bytes, tuple[bytes, KeyClient]] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again: counts go on, removed keys are refused from now on. Raises ConfigError."""
        keys = read_api_keys(self._security)
        if is_readable_by_others(str(self._security.api_keys)):
            log.warning("security.api_keys: other users can read %s; chmod 600 it", self._security.api_keys)
        clients: dict[str, KeyClient] = {}
        for key in keys:
            client = clients.setdefault(key.name, self._clients.get(key.name) or KeyClient(key))
            client.take_limits(key)
        self._clients = clients
        self._by_digest = {key.digest: (key.digest, clients[key.name]) for key in keys}

    def find(self, key: bytes | None) -> KeyClient:
        """Return the client with this API key. Raises Unauthenticated.

        The lookup is by the key's digest, so that its time reveals nothing about known keys.
        """
        if key is None:
            raise Unauthenticated(f"this service asks for an API key: {_HOW}")
        digest = hash_key(key)
        key_digest, client = self._by_digest.get(digest, (b"", None))
        if client is None or not hmac.compare_digest(key_digest, digest):
            raise Unauthenticated(f"the API key is not one of this service's: {_HOW}")
        return client

    def figures(self, read: Callable[[KeyClient], float]) -> Iterable[tuple[dict[str, str], float]]:
        """For /metrics, by name."""
        return [({"key": name}, float(read(client))) for name, client in self._clients.items()]


def shown_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The key among headers whose names are in lower case; the first one counts."""
    for name, value in headers:
        if name == API_KEY:
            return value.strip()
        if name == AUTHORIZATION:
            scheme, _, key = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                return key.strip()
    return None


def named(peer: str, client: Client | None) -> str:
    """An address as the log tells it: with the name of the client's API key."""
    return f"{peer} ({client.name})" if client is not None and client.name else peer


def caller(peer: str) -> str:
    """Return the name of a gRPC client in summed log lines: its address without the port of the connection.

    peer: gRPC's name of it, ipv4:10.0.0.1:40000 or ipv6:%5B::1%5D:40000.
    """
    address = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
    return named(address or "?", CALLER.get())


CALLER: ContextVar[Client | None] = ContextVar("caller", default=None)
"""Who makes the gRPC call of the current task, where keys are asked for."""
