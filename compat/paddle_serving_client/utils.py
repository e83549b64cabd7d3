"""Utilities that Paddle Serving's benchmark scripts import: options, parallel clients, report."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from client.errors import numpy_required


def benchmark_args() -> argparse.Namespace:
    """Parse the command line of a benchmark script.

    Returns thread, model, endpoint, request ("rpc" or "http") and batch_size.
    """
    parser = argparse.ArgumentParser("benchmark")
    parser.add_argument("--thread", type=int, default=10, help="clients at once")
    parser.add_argument("--model", default="", help="model to ask")
    parser.add_argument("--endpoint", default="127.0.0.1:9292", help="host:port of the service")
    parser.add_argument("--request", default="rpc", help="rpc or http")
    parser.add_argument("--batch_size", type=int, default=1, help="rows of a request")
    return parser.parse_args()


def show_latency(latency_list: Sequence[float]) -> None:
    """Write mean, median and upper percentiles of latencies in ms to standard error."""
    with numpy_required():
        import numpy as np
    latencies = np.asarray(latency_list)
    lines = [f"mean: {latencies.mean()}ms", f"median: {np.median(latencies)}ms"]
    lines += [f"{percent}_percent: {np.percentile(latencies, percent)}ms" for percent in (80, 90, 99)]
    sys.stderr.write("\n".join(["latency:", *lines, ""]))


class MultiThreadRunner:
    """Runs a benchmark function in several processes at once.

    The name, with "thread", is Paddle Serving's.
    """

    def run(
        self, thread_func: Callable[[int, Any], Any], thread_num: int, global_resource: Any
    ) -> list[list[Any]] | None:
        """Call `thread_func(number, global_resource)` in `thread_num` processes, with numbers from 1.

        Each call returns a list of lists. The first lists of all calls are joined, then the second lists, and
        so on. The result is None if the function returns None. An exception of a call is raised again. Proxy
        settings are removed from the environment, as in Paddle Serving.
        """
        for name in ("http_proxy", "https_proxy"):
            os.environ[name] = ""
        fork = multiprocessing.get_context("fork")  # the function may be the script's own
        with ProcessPoolExecutor(thread_num, mp_context=fork) as pool:
            calls = [pool.submit(thread_func, number, global_resource) for number in range(1, thread_num + 1)]
            results = [call.result() for call in calls]
        if any(result is None for result in results):
            return None
        return [[item for part in parts for item in part] for parts in zip(*results, strict=True)]
