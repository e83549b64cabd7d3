"""The load test: threads send requests to a running service, over any of its protocols, and time them.

The generator is Python and sends at most some thousand requests/s, even if the service could answer more.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from client.project_environment import use_project_environment

    use_project_environment("grpc", "google", "rich")

import argparse
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from client.addresses import SEVERAL
from client.client_command import plain_console
from client.connection_options import ConnectionOptions
from client.endpoints import ENDPOINTS, Connection, Endpoint, HttpConnection, RequestNames, RpcConnection
from client.errors import ClientError, RequestRefused
from client.http_client import DEFAULT_URL
from client.load_plot import write_plot
from client.load_report import Sample, print_report
from client.options import add_options, option, parse_options
from client.rpc_client import DEFAULT_ADDRESS

LINES = (".jsonl", ".ndjson")  # files with a body on each line; any other file is one body


def make_text_bodies(
    endpoint: Endpoint, request_names: RequestNames, texts: Sequence[str], keys: Sequence[str], rows: int
) -> list[bytes]:
    """Build request bodies from texts: as many bodies as texts, each with `rows` texts.

    Body i has text i and the texts that follow. keys: name of the input in the request, one for all texts of
    a request or one for each. Raises ValueError for another number of keys.
    """
    names = list(keys) or list(endpoint.keys(rows))
    if len(names) not in (1, rows):
        raise ValueError(f"--as is given {len(names)} times for {rows} texts a request; name all, or one")
    if len(names) == 1 and rows > 1 and len(endpoint.keys(rows)) > 1:
        raise ValueError(f"a key has one text at this endpoint; give --as {rows} times")
    bodies = []
    for start in range(len(texts)):
        row_texts = [texts[(start + row) % len(texts)] for row in range(rows)]
        columns = (
            {names[0]: row_texts}
            if len(names) == 1
            else {n: [t] for n, t in zip(names, row_texts, strict=True)}
        )
        bodies.append(endpoint.body(request_names, columns))
    return bodies


def read_bodies(endpoint: Endpoint, path: Path) -> list[bytes]:
    """Read request bodies from a file or folder, to be sent as they are.

    A .jsonl file has a body on each line, any other file is one body, and a folder has a body in each file.
    Raises OSError, and ValueError if there is no body or a line is not a body of this protocol.
    """
    if path.is_dir():
        bodies = [file.read_bytes() for file in sorted(path.iterdir()) if file.is_file()]
    elif path.suffix in LINES:
        bodies = []
        for number, line in enumerate(read_texts(path), 1):
            try:
                bodies.append(endpoint.from_json(line))
            except ValueError as exc:
                raise ValueError(f"{path}: body {number} is none of this endpoint's: {exc}") from exc
    else:
        bodies = [path.read_bytes()]
    if not any(bodies):
        raise ValueError(f"{path} holds no body")
    return bodies


def read_texts(path: Path) -> list[str]:
    """Read the non-empty lines of a UTF-8 file.

    Only a line feed ends a line, because texts may hold U+2028.
    """
    lines = path.read_bytes().decode("utf-8").split("\n")
    return [line.strip() for line in lines if line.strip()]


TEXTS = [
    "央行宣布下调存款准备金率",
    "国足客场两球取胜，提前一轮出线",
    "新款电动车开启预售，续航超过七百公里",
    "高校公布今年招生计划，新增三个专业",
    "国产手机芯片完成流片，明年量产",
    "老城区改造启动，两千户居民将搬新居",
    "春季茶叶开采，茶农忙着抢收",
    "电影节落幕，新人导演获最佳影片",
]
EXAMPLES = """examples:
  python3 -m client.load --threads 20 --loops 200
  python3 -m client.load --rpc 127.0.0.1:8088 --seconds 10 --plot latency.svg
  python3 -m client.load --texts headlines.txt --as text --service news
  python3 -m client.load --door v2-http --service resnet --bodies requests.jsonl --rate 200 --seconds 30
  python3 -m client.load --bodies photos/ --path /photo/prediction --header "Content-Type: image/jpeg"
"""
LATE_MS = 10.0  # a request that starts later than this had no free thread
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _rate(text: str) -> float:
    rate = float(text)
    if not 0 < rate < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no rate")
    return rate


@dataclass(frozen=True)
class LoadOptions(ConnectionOptions):
    """The command-line options of the load test. Raises ValueError for options that conflict."""

    url: str | None = option(group="where", help=f"over HTTP, {SEVERAL} (default: {DEFAULT_URL})")
    rpc: str | None = option(
        group="where", metavar="ADDRESS", help=f"over gRPC, such as 127.0.0.1:8088, {SEVERAL}"
    )
    door: str | None = option(choices=ENDPOINTS, help="how to ask (default: http, with --rpc grpc)")
    path: str | None = option(help="over HTTP, in place of the endpoint's own path")
    service: str = option(default="bert", help="its name, or the model's at v1 and v2 (default: %(default)s)")
    method: str = option(default="prediction", help="of http and grpc (default: %(default)s)")
    threads: int = option(type=_positive, default=20, help="connections (default: %(default)s)")
    loops: int | None = option(type=_positive, help="requests of each thread (default: 200)")
    seconds: float | None = option(help="stop after this time; without --loops by time alone")
    rate: float | None = option(
        type=_rate,
        metavar="N",
        help="requests a second in all, whether they are answered or not, each timed from when it was due "
        "(default: each thread asks again when it is answered)",
    )
    texts: Path | None = option(metavar="FILE", help="a text a line (default: 8 headlines)")
    rows: int = option(type=_positive, default=1, help="texts a request (default: 1)")
    keys: tuple[str, ...] = option(
        "--as",
        default=(),
        metavar="NAME",
        help="what a text is called; again for the next one of a request (default: 0, 1, ...; v1, v2: text)",
    )
    bodies: Path | None = option(
        metavar="PATH",
        help="bodies in place of texts: a .jsonl file with one a line, another file, or a folder of files; "
        "over gRPC a line is the message as JSON",
    )
    timeout: float = option(default=10.0, metavar="SECONDS", help="(default: 10)")
    plot: Path | None = option(metavar="FILE.svg", help="draw the latencies")

    def __post_init__(self) -> None:
        if self.plot is not None and self.plot.suffix != ".svg":
            raise ValueError(f"--plot {self.plot}: the plot is an SVG, name it *.svg")
        if self.over_rpc and self.url is not None:
            raise ValueError(f"--door {self.protocol} is over gRPC; give --rpc in place of --url")
        if not self.over_rpc and self.rpc is not None:
            raise ValueError(f"--door {self.protocol} is over HTTP; give --url in place of --rpc")
        if self.over_rpc and self.path is not None:
            raise ValueError(f"--path is for HTTP, --door {self.protocol} is over gRPC")
        if self.bodies is not None and (self.texts or self.keys or self.rows != 1):
            raise ValueError("--bodies are sent as they are; --texts, --as and --rows make bodies of texts")

    @property
    def protocol(self) -> str:
        """Name of the protocol, a key of ENDPOINTS."""
        return self.door or ("http" if self.rpc is None else "grpc")

    @property
    def endpoint(self) -> Endpoint:
        """The protocol of the requests, as an entry of ENDPOINTS."""
        return ENDPOINTS[self.protocol]

    @property
    def over_rpc(self) -> bool:
        """Whether requests are sent over gRPC."""
        return bool(self.endpoint.method)

    @property
    def address(self) -> str:
        """URL of the service, or its host and port for gRPC."""
        return (self.rpc or DEFAULT_ADDRESS) if self.over_rpc else (self.url or DEFAULT_URL)

    @property
    def request_names(self) -> RequestNames:
        """Names of the service and method for each request."""
        return RequestNames(self.service, self.method)

    @property
    def loops_per_thread(self) -> int | None:
        """Number of requests that each thread sends; None for a test that is limited by time only."""
        return 200 if self.loops is None and self.seconds is None else self.loops


class LoadTest:
    """A load test: `threads` clients, each with its own connection, send requests and record latencies.

    It ends after `loops` requests of each thread, after `seconds`, or at `stop`. rate: requests per second of
    all threads together. With a rate, a request starts when it is due, even if earlier requests are
    unanswered, and its latency counts from then. None: each thread sends its next request after an answer.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        bodies: Sequence[bytes],
        *,
        threads: int,
        loops: int | None,
        seconds: float | None,
        timeout_s: float,
        rate: float | None = None,
    ) -> None:
        self._connect = connect
        self._bodies = bodies
        self._loops = loops
        self._seconds = seconds
        self._timeout_s = timeout_s
        self._rate = rate
        self._requests = itertools.count()  # of all threads
        self._max_requests = None if loops is None else loops * threads
        self._stop = threading.Event()
        self._started = 0.0
        self._samples: list[list[Sample]] = [[] for _ in range(threads)]
        # Daemons: an interrupted test does not wait for answers that may never come.
        self._threads = [
            threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(threads)
        ]

    def start(self) -> None:
        """Start the threads, and return at once."""
        self._started = time.monotonic()
        for thread in self._threads:
            thread.start()

    def running(self, wait_s: float) -> bool:
        """Wait at most `wait_s` seconds, and return whether the test was still running before the wait."""
        alive = next((thread for thread in self._threads if thread.is_alive()), None)
        if alive is not None:
            alive.join(wait_s)
        return alive is not None

    def stop(self) -> None:
        """Stop sending requests; requests in flight are neither awaited nor counted."""
        self._stop.set()

    def done(self) -> int:
        """Return the number of requests that were answered or failed so far."""
        return sum(len(samples) for samples in self._samples)

    def elapsed_s(self) -> float:
        """Return the seconds since the start of the test."""
        return time.monotonic() - self._started

    def samples(self) -> list[Sample]:
        """Return a record of each request that was answered or failed so far."""
        return [sample for samples in self._samples for sample in list(samples)]

    def _ask(self, number: int) -> None:
        samples = self._samples[number]
        bodies = itertools.islice(itertools.cycle(self._bodies), number % len(self._bodies), None)
        with self._connect() as connection:
            for began in self._turns() if self._rate is None else self._due(self._rate):
                late_ms = (time.monotonic() - began) * 1000
                error = _outcome(connection, next(bodies), self._timeout_s)
                if self._stop.is_set():
                    return
                now = time.monotonic()
                samples.append(Sample(now - self._started, (now - began) * 1000, error, late_ms > LATE_MS))

    def _turns(self) -> Iterator[float]:
        """Yield the current time as the start of a thread's next request, each time the last is answered."""
        for _ in itertools.count() if self._loops is None else range(self._loops):
            if self._stop.is_set() or (self._seconds is not None and self.elapsed_s() >= self._seconds):
                return
            yield time.monotonic()

    def _due(self, rate: float) -> Iterator[float]:
        """Yield the scheduled start of each request that this thread sends, after waiting until then.

        rate: requests per second of all threads. Starts are `time.monotonic()` instants.
        """
        for number in self._requests:
            after_s = number / rate
            over = self._seconds is not None and after_s >= self._seconds
            if over or (self._max_requests is not None and number >= self._max_requests):
                return
            due = self._started + after_s
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            yield due


def _outcome(connection: Connection, body: bytes, timeout_s: float) -> str | None:
    """Send a request.

    Return None for an answer, or the class name of its error, such as "RequestTimedOut".
    """
    try:
        connection.ask(body, timeout_s)
    except RequestRefused as error:
        which = f"HTTP {error.http_status}" if error.err_no is None else f"err_no {error.err_no}"
        return f"{type(error).__name__} ({which})"
    except ClientError as error:
        return type(error).__name__
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load test of the command line, print its report, and return the exit code.

    The exit code is 1 if any request failed. If the first request fails, nothing is measured.
    """
    options, bodies = _parse_options(arguments)
    console, connect = plain_console(), partial(_connect, options)
    try:
        with connect() as connection:
            connection.ask(bodies[0], options.timeout)
    except (ClientError, ValueError) as error:
        console.print(f"the first request failed, nothing was measured: {error}", style="red", soft_wrap=True)
        return 1
    loops = options.loops_per_thread
    test = LoadTest(
        connect,
        bodies,
        threads=options.threads,
        loops=loops,
        seconds=options.seconds,
        timeout_s=options.timeout,
        rate=options.rate,
    )
    interrupted = _watch(test, None if loops is None else loops * options.threads, options.seconds)
    elapsed_s, samples = test.elapsed_s(), test.samples()
    title = _title(options)
    failed = print_report(console, title, samples, elapsed_s)
    if options.plot is not None and samples:
        write_plot(options.plot, title, samples)
        console.print(f"plot: {options.plot}")
    if interrupted:
        return INTERRUPTED
    return 1 if failed or not samples else 0


def _parse_options(arguments: Sequence[str] | None) -> tuple[LoadOptions, list[bytes]]:
    """Parse the command line. Return its options and the request bodies.

    Exits with a message if the command line is wrong.
    """
    parser = argparse.ArgumentParser(
        prog="python3 -m client.load",
        description="Load a running service and print requests/s, latencies and errors.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, LoadOptions)
    try:
        options = parse_options(LoadOptions, parser.parse_args(arguments))
        return options, _bodies(options)
    except (OSError, ValueError) as error:
        parser.error(str(error))


def _bodies(options: LoadOptions) -> list[bytes]:
    """Return the request bodies that the options select: read from files, or built from texts.

    Raises OSError, and ValueError for invalid bodies.
    """
    if options.bodies is not None:
        return read_bodies(options.endpoint, options.bodies)
    texts = read_texts(options.texts) if options.texts else TEXTS
    if not texts:
        raise ValueError(f"--texts {options.texts}: no line with text in it")
    return make_text_bodies(options.endpoint, options.request_names, texts, options.keys, options.rows)


def _connect(options: LoadOptions) -> Connection:
    """Create a client connection to the service that the options name."""
    endpoint, arguments = options.endpoint, options.create_arguments()
    if options.over_rpc:
        return RpcConnection(endpoint, options.address, **arguments)
    path = options.path or endpoint.path(options.request_names)
    return HttpConnection(endpoint, options.address, path, **arguments)


def _title(options: LoadOptions) -> str:
    where = f"{'gRPC' if options.over_rpc else 'HTTP'} {options.address}"
    endpoint = "" if options.protocol in ("http", "grpc") else f" ({options.protocol})"
    what = f"bodies of {options.bodies}" if options.bodies else f"texts a request: {options.rows}"
    pace = "" if options.rate is None else f", {options.rate:g} requests/s"
    return f"{where}{endpoint}, {options.threads} threads{pace}, {what}"


def _watch(test: LoadTest, total: int | None, seconds: float | None) -> bool:
    """Run the load test with a progress bar until it ends; return whether Ctrl-C ended it.

    total: expected requests. seconds: expected duration.
    """
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=plain_console(stderr=True), transient=True) as progress:
        task = progress.add_task("requests", total=total)
        test.start()
        try:
            while test.running(wait_s=0.1):
                done = test.done()
                if total is None and seconds is not None and done:
                    # By time: the bar's end follows from the rate so far.
                    expected = done * max(1.0, seconds / max(test.elapsed_s(), 0.001))
                    progress.update(task, total=round(expected))
                progress.update(task, completed=done)
        except KeyboardInterrupt:
            test.stop()
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
