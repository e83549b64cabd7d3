"""Admission control: accepts or rejects requests before they are queued, and identifies their clients.

Clients are told apart by API key or by connection, and each gets a fair share of the queue.
"""

from __future__ import annotations

import hmac
import logging
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar

from pipeline.api.dag import Dag
from pipeline.config.api_keys import ApiKey, hash_key, is_readable_by_others, read_api_keys
from pipeline.config.config_file import SecurityConfig
from pipeline.errors import DeadlineExceeded, Overloaded, Unauthenticated
from pipeline.front.dag_run import Client, FairQueue, Request, Task
from pipeline.front.scheduler.batcher import Batcher

MARGIN = 1.5  # run times vary, and an optimistic estimate admits requests that miss their deadline
MAX_PAUSE_S, SHORTEST_PAUSE_S = 60.0, 0.1
RECKONED_S = 0.005  # how long a computed wait is reused: errors show it with one decimal
_UNKNOWN_PAUSE_S = 1.0


class Admission:
    """Admission control: limits pending requests, and rejects requests that would miss their deadline.

    The expected wait before an Op (a step of the service) is the number of queued rows times the time per
    row, divided by the number of instances. A request is always admitted if each of its Ops has an idle
    instance, or if there is no estimate yet. The run times of admitted requests correct a wrong estimate.
    """

    def __init__(self, queues: Mapping[str, Batcher], max_pending: int, max_rows: int = 1_000_000) -> None:
        """Create the admission control of a service.

        queues: the batcher of each Op, by the Op's name; must be complete before the first request.
        max_pending: maximum number of pending requests. max_rows: maximum number of rows of the pending
        requests; a single request may have more.
        """
        self.fair_queue = FairQueue()
        self._queues = queues
        self._max_pending = max_pending
        self._max_rows = max_rows
        self._rows = 0  # of the pending requests
        # A request with more time than these needs no comparison:
        self._per_row_s = 0.0  # for each row that may be pending
        self._runs_s = 0.0  # for the runs of the request
        self._mixed = False  # whether there were requests of several priorities
        self._full_wait_s = (
            0.0  # result of `_wait_when_full_s` for `_full_wait_dag`, until `_full_wait_until`
        )
        self._full_wait_dag: Dag | None = None
        self._full_wait_until = 0.0
        self._full_error = Overloaded("")  # result of `find_overload` for `_full_error_key`
        self._full_error_key = (0, 0.0)  # pending requests, and seconds to wait

    def admit(self, request: Request, dag: Dag, client: Client, pending: int) -> int:
        """Admit a request of this client, and return its turn: its place in the fair queue.

        Raises Overloaded (HTTP 429), with the seconds to wait, and DeadlineExceeded (504). dag: the Ops that
        the request runs through. pending: current number of pending requests of the service.
        """
        if client.limited:
            client.check()
        if pending >= self._max_pending and not self._made_room(request, dag, client):
            raise _describe_full(pending, self._wait_when_full_s(dag))
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

    def find_overload(self, dag: Dag, client: Client, pending: int) -> Overloaded | None:
        """Return the error that any request of this client would get while too many requests are pending.

        Returns None if `admit` might admit a request of the client, depending on its content. The error needs
        no parsing of the request. It is shared for some milliseconds, so callers must not raise it.
        Arguments: as in `admit`.
        """
        if pending < self._max_pending or client.limited:
            return None
        if self._has_share_left(client) and any(self._find_larger(client)):
            return None
        wait_s = self._wait_when_full_s(dag)
        if self._full_error_key != (pending, wait_s):
            self._full_error_key = pending, wait_s
            self._full_error = _describe_full(pending, wait_s)
        return self._full_error

    def end_request(self, request: Request, client: Client) -> None:
        """Stop counting a request as pending, after its answer, its failure or the client's disconnection."""
        self._rows -= request.rows
        self.fair_queue.end(client)

    def update_paces(self) -> None:
        """Recompute the cached estimates of waiting time.

        A batcher calls this after each measured model run.
        """
        per_row_s = runs_s = 0.0
        for queue in self._queues.values():
            per_row_s += queue.pace.per_row_s
            runs_s += queue.pace.first_s
        self._per_row_s, self._runs_s = MARGIN * per_row_s, MARGIN * runs_s

    def _compare(self, request: Request, dag: Dag, client: Client, pending: int, remaining_s: float) -> None:
        """Raise Overloaded or DeadlineExceeded if the request can't be answered before its deadline.

        remaining_s: seconds until the request's deadline.
        """
        if remaining_s <= 0.0:
            raise DeadlineExceeded("the request's deadline had passed when it arrived")
        if all(self._queues[op].idle for op in dag.ops):
            return
        expected_s = MARGIN * self._finish_s(dag, pending, None)
        turn = self.fair_queue.next(client)
        if expected_s > remaining_s and (self._mixed or turn < self.fair_queue.latest):
            place = request.priority, turn + 1  # some queued requests come later
            expected_s = MARGIN * self._finish_s(dag, pending, place)
        if expected_s > remaining_s:
            wait_s = _limit_pause(expected_s - remaining_s)
            raise Overloaded(
                f"the answer is expected in {expected_s:.3f} s, and the request has {remaining_s:.3f} s left "
                f"until its deadline; try again in {wait_s:.1f} s",
                retry_after_s=wait_s,
            )

    def _wait_when_full_s(self, dag: Dag) -> float:
        """Return the seconds after which a client shall retry when the maximum number of requests is pending.

        The result is an estimate of the time to process so many requests. It is reused for a few
        milliseconds.
        """
        now = time.monotonic()
        if now >= self._full_wait_until or dag is not self._full_wait_dag:
            self._full_wait_until, self._full_wait_dag = now + RECKONED_S, dag
            self._full_wait_s = _limit_pause(self._finish_s(dag, self._max_pending, None) or _UNKNOWN_PAUSE_S)
        return self._full_wait_s

    def _made_room(self, request: Request, dag: Dag, client: Client) -> bool:
        """Make room for a request: reject a queued request of a client that exceeds its fair share.

        Returns whether there was such a request. The last request of a queue is rejected, because its client
        has the most queued requests.
        """
        if not self._has_share_left(client):
            return False
        for task in self._find_larger(client):
            if task.dag_run.request.priority >= request.priority:
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

    def _has_share_left(self, client: Client) -> bool:
        """Return whether a client has fewer pending requests than its fair share of the maximum."""
        return client.pending * max(1, self.fair_queue.clients) < self._max_pending

    def _find_larger(self, client: Client) -> Iterator[Task]:
        """Yield each queue's last task if its client has more requests than this client would then have."""
        for queue in self._queues.values():
            task = queue.last()
            if task is None or (other := task.dag_run.request.client) is None:
                continue
            if other.pending > client.pending + 1:
                yield task

    def _finish_s(self, dag: Dag, pending: int, place: tuple[int, int] | None) -> float:
        """Return the expected seconds until the response of a request that begins now.

        place: priority and turn in the queues; None: behind all queued requests.

        Rows that wait in the queue of one Op will also wait in the queue of the next Op. All Ops work at the
        same time, so the slowest Op decides the wait. The time of the model runs on the longest path of the
        DAG is added. Queues also contain cancelled tasks, so the number of rows ahead is limited to the
        pending rows.
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
            runs_s[node] = queue.pace.first_s + max((runs_s[name] for name in inputs), default=0.0)
            wait_s = max(wait_s, queue.wait_s(ahead[node]))
        return wait_s + max(runs_s.values())


def _describe_full(pending: int, wait_s: float) -> Overloaded:
    """Return the error of a request that arrives while the maximum number of requests is pending."""
    return Overloaded(
        f"{pending} requests are pending, the most that dag.max_pending_requests allows; "
        f"try again in {wait_s:.1f} s",
        retry_after_s=wait_s,
    )


def _limit_pause(wait_s: float) -> float:
    """Return the retry pause of an Overloaded error, limited to the module's minimum and maximum seconds."""
    return min(MAX_PAUSE_S, max(SHORTEST_PAUSE_S, wait_s))


log = logging.getLogger(__name__)

AUTHORIZATION, API_KEY = b"authorization", b"x-api-key"
MAX_PEERS = 1024  # above this, clients without pending requests are dropped
_HOW = "send the header 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"


class KeyClient(Client):
    """A client identified by an API key: counts its pending requests, and enforces the limits of the key.

    All keys with the same name belong to one client. A token bucket limits the rate; it holds the tokens of
    one second.
    """

    __slots__ = ("_filled_at", "_tokens", "max_pending", "rate", "refused", "requests")

    limited = True

    def __init__(self, key: ApiKey) -> None:
        super().__init__(key.name)
        self.requests = 0
        self.refused = 0
        self._filled_at = time.monotonic()
        self.take_limits(key)
        self._tokens = max(1.0, self.rate)

    def take_limits(self, key: ApiKey) -> None:
        """Set the limits from a line of the API key file: pending requests, and requests per second."""
        self.max_pending, self.rate = key.pending, key.rate

    def check(self) -> None:
        """Count a request of this client.

        Raises Overloaded (HTTP 429) if the request exceeds the limits of the key.
        """
        self.requests += 1
        if self.max_pending and self.pending >= self.max_pending:
            self.refused += 1
            raise Overloaded(
                f"{self.pending} requests with API key {self.name!r} are pending, the most that it may have"
            )
        if self.rate:
            self._take_token(time.monotonic())

    def _take_token(self, now: float) -> None:
        """Take a token from the bucket. Raises Overloaded if the bucket is empty.

        now: instant of time.monotonic().
        """
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
    """Registry of gRPC clients without API keys, one `Client` for each address.

    Admission gives each client a fair share of the queue.
    """

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}

    def find_client(self, peer: str) -> Client:
        """Return the client of a connection, and create it if it is new. peer: address as gRPC writes it."""
        client = self._clients.get(peer)
        if client is None:
            if len(self._clients) >= MAX_PEERS:
                self._clients = {name: other for name, other in self._clients.items() if other.pending}
            client = self._clients[peer] = Client()
        return client


class KeyRing:
    """The API keys of the service, and the client of each key. Only SHA-256 digests of keys are in memory."""

    def __init__(self, security: SecurityConfig) -> None:
        """Read the file of `security.api_keys`. Raises ConfigError if the file can't be used."""
        self._security = security
        self._clients: dict[str, KeyClient] = {}
        self._by_digest: dict[bytes, tuple[bytes, KeyClient]] = {}
        self.reload()

    def reload(self) -> None:
        """Read the API key file again. Raises ConfigError, and keeps the current keys, for an invalid file.

        Clients keep their counts of requests. Keys that were removed are rejected from now on.
        """
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
        """Return the client with this API key. Raises Unauthenticated (HTTP 401) for an unknown key or None.

        The lookup is by the key's digest, so that its duration reveals nothing about known keys.
        """
        if key is None:
            raise Unauthenticated(f"this service asks for an API key: {_HOW}")
        digest = hash_key(key)
        key_digest, client = self._by_digest.get(digest, (b"", None))
        if client is None or not hmac.compare_digest(key_digest, digest):
            raise Unauthenticated(f"the API key is not one of this service's: {_HOW}")
        return client

    def figures(self, read: Callable[[KeyClient], float]) -> Iterable[tuple[dict[str, str], float]]:
        """Return the samples of a per-client metric for /metrics, each labelled with the name of an API key.

        read: returns the metric's value for one client.
        """
        return [({"key": name}, float(read(client))) for name, client in self._clients.items()]


def find_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the API key from a request's `Authorization: Bearer` or `X-API-Key` header; None if it has none.

    headers: header names in lower case, and values.
    """
    for name, value in headers:
        if name == API_KEY:
            return value.strip()
        if name == AUTHORIZATION:
            scheme, _, key = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                return key.strip()
    return None


def name_peer(peer: str, client: Client | None) -> str:
    """Return the address of a client for log lines, with the name of its API key if it has one."""
    return f"{peer} ({client.name})" if client is not None and client.name else peer


def name_caller(peer: str) -> str:
    """Return the name of a gRPC client for grouping log lines: its address without the port.

    peer: its address as gRPC writes it, ipv4:10.0.0.1:40000 or ipv6:%5B::1%5D:40000.
    """
    address = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
    return name_peer(address or "?", CALLER.get())


CALLER: ContextVar[Client | None] = ContextVar("caller", default=None)
"""Client of the gRPC call of the current task; None without API keys."""
