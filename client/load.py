"""The throughput test: threads that ask the service over and over, over HTTP or gRPC.

The generator is Python: what it can send ends at some thousand requests/s, whatever the service could answer.
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
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from client.api_key import add_api_key_option
from client.client_command import plain_console
from client.errors import ClientError, RequestRefused
from client.exchange import Client
from client.http_client import DEFAULT_URL, HttpClient
from client.load_plot import write_plot
from client.load_report import Sample, print_report
from client.rpc_client import RpcClient
from client.tls import add_tls_options, tls_of

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
  python3 -m client.load --texts headlines.txt --rows 4
"""
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class LoadTest:
    """Runs `threads` clients, each with a connection of its own, until `loops` or `seconds` or `stop`."""

    def __init__(
        self,
        connect: Callable[[], Client],
        texts: Sequence[str],
        *,
        threads: int,
        loops: int | None,
        seconds: float | None,
        rows: int,
    ) -> None:
        self._connect = connect
        self._texts = texts
        self._rows = rows
        self._loops = loops
        self._seconds = seconds
        self._stop = threading.Event()
        self._started = 0.0
        self._samples: list[list[Sample]] = [[] for _ in range(threads)]
        # Daemons: an interrupted test does not wait for answers that may never come.
        self._threads = [
            threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(threads)
        ]

    def start(self) -> None:
        self._started = time.monotonic()
        for thread in self._threads:
            thread.start()

    def running(self, wait_s: float) -> bool:
        """Whether a thread is still asking, after at most `wait_s`."""
        alive = next((thread for thread in self._threads if thread.is_alive()), None)
        if alive is not None:
            alive.join(wait_s)
        return alive is not None

    def stop(self) -> None:
        """Ends the sending; what is under way is not waited for, nor counted."""
        self._stop.set()

    def done(self) -> int:
        return sum(len(samples) for samples in self._samples)

    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def samples(self) -> list[Sample]:
        return [sample for samples in self._samples for sample in list(samples)]

    def _ask(self, number: int) -> None:
        samples = self._samples[number]
        texts = itertools.islice(itertools.cycle(self._texts), number, None)
        with self._connect() as client:
            for _ in self._turns():
                feed = {str(row): next(texts) for row in range(self._rows)}
                began = time.monotonic()
                error = _outcome(client, feed)
                if self._stop.is_set():
                    return
                now = time.monotonic()
                samples.append(Sample(now - self._started, (now - began) * 1000, error))

    def _turns(self) -> Iterator[int]:
        for turn in itertools.count() if self._loops is None else range(self._loops):
            if self._stop.is_set() or (self._seconds is not None and self.elapsed_s() >= self._seconds):
                return
            yield turn


def _outcome(client: Client, feed: dict[str, str]) -> str | None:
    """None when answered, else the kind of error."""
    try:
        client.predict(feed)
    except RequestRefused as error:
        return f"{type(error).__name__} (err_no {error.err_no})"
    except ClientError as error:
        return type(error).__name__
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.plot is not None and options.plot.suffix != ".svg":
        parser.error(f"--plot {options.plot}: the plot is an SVG, name it *.svg")
    texts = read_texts(options.texts) if options.texts else TEXTS
    if not texts:
        parser.error(f"--texts {options.texts}: no line with text in it")

    def connect() -> Client:
        # No retries: here an error is a result.
        if options.rpc is not None:
            return RpcClient(
                options.rpc,
                options.service,
                options.method,
                options.timeout,
                0,
                tls_of(options),
                options.api_key,
            )
        return HttpClient(
            options.url,
            options.service,
            options.method,
            options.timeout,
            0,
            tls_of(options),
            options.api_key,
        )

    console = plain_console()
    try:
        with connect() as client:
            client.predict(texts[0])
    except (ClientError, ValueError) as error:
        console.print(f"the first request failed, nothing was measured: {error}", style="red", soft_wrap=True)
        return 1
    loops = options.loops if options.loops is not None or options.seconds is not None else 200
    test = LoadTest(
        connect, texts, threads=options.threads, loops=loops, seconds=options.seconds, rows=options.rows
    )
    interrupted = _watch(test, None if loops is None else loops * options.threads, options.seconds)
    elapsed_s, samples = test.elapsed_s(), test.samples()
    door = f"gRPC {options.rpc}" if options.rpc is not None else f"HTTP {options.url}"
    title = f"{door}, {options.threads} threads, texts a request: {options.rows}"
    failed = print_report(console, title, samples, elapsed_s)
    if options.plot is not None and samples:
        write_plot(options.plot, title, samples)
        console.print(f"plot: {options.plot}")
    if interrupted:
        return INTERRUPTED
    return 1 if failed or not samples else 0


def _watch(test: LoadTest, total: int | None, seconds: float | None) -> bool:
    """Shows the progress until the test ends; true when Ctrl-C ended it."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=plain_console(stderr=True), transient=True) as progress:
        task = progress.add_task("requests", total=total)
        test.start()
        try:
            while test.running(wait_s=0.1):
                done = test.done()
                if total is None and seconds is not None and done:
                    # By time: the bar's end is where the pace so far leads.
                    expected = done * max(1.0, seconds / max(test.elapsed_s(), 0.001))
                    progress.update(task, total=round(expected))
                progress.update(task, completed=done)
        except KeyboardInterrupt:
            test.stop()
            return True
    return False


def read_texts(path: Path) -> list[str]:
    """The lines of a UTF-8 file, empty ones left out; only a line feed ends one, as texts may hold U+2028."""
    lines = path.read_bytes().decode("utf-8").split("\n")
    return [line.strip() for line in lines if line.strip()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m client.load",
        description="Load a running service and print requests/s, latencies and errors.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    door = parser.add_mutually_exclusive_group()
    door.add_argument("--url", default=DEFAULT_URL, help="over HTTP (default: %(default)s)")
    door.add_argument("--rpc", metavar="ADDRESS", help="over gRPC, such as 127.0.0.1:8088")
    parser.add_argument("--threads", type=_positive, default=20, help="connections (default: %(default)s)")
    parser.add_argument("--loops", type=_positive, help="requests of each thread (default: 200)")
    parser.add_argument("--seconds", type=float, help="stop after this time; without --loops by time alone")
    parser.add_argument("--rows", type=_positive, default=1, help="texts a request (default: 1)")
    parser.add_argument("--texts", type=Path, metavar="FILE", help="a text a line (default: 8 headlines)")
    parser.add_argument("--service", default="bert", help="(default: %(default)s)")
    parser.add_argument("--method", default="prediction", help="(default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help="(default: 10)")
    add_tls_options(parser)
    add_api_key_option(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the latencies")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
