"""Lets a service run out of memory: a memory cgroup, and requests for twice its limit.

The user creates the group as root, with a limit of some 500 MB and without processes. With cgroup v1: cd
/sys/fs/cgroup/memory && mkdir small && echo 500M > small/memory.limit_in_bytes
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from bench.load import CannotMeasure
from bench.running import ROOT, running_service
from tests.support.service_process import ServiceProcess

CALLERS = 4
LIMITS = ("memory.max", "memory.limit_in_bytes")  # cgroup v2, v1
DEATH = "died: killed by SIGKILL when memory ran out"
REFUSED = "not tried again"


def measure(group: Path, times: int) -> list[str]:
    """Print and return the observations, one per line. Raises CannotMeasure."""
    config = {"op": {"hungry": {"concurrency": 2}}, "dag": {"http_errors": "status", "is_thread_op": False}}
    megabytes = 2 * _limit(group) // 1_000_000
    with running_service(ROOT / "bench" / "hungry_service.py", config) as service:
        for pid in (service.process.pid, *service.worker_pids()):
            (group / "cgroup.procs").write_text(str(pid))
        over = Event()
        with ThreadPoolExecutor(CALLERS) as pool:
            callers = [pool.submit(_ask_on, service, over) for _ in range(CALLERS)]
            try:
                outcomes = Counter(_ask(service, megabytes) for _ in range(times))
                service.wait_until_ready()
            finally:
                over.set()
            meanwhile = sum((other.result() for other in callers), Counter[str]())
        deaths = service.log.count(DEATH)
    _print(outcomes, "hungry")
    _print(meanwhile, "others")
    sys.stdout.write(f"{deaths} workers {DEATH}\n")
    broken = [f"a hungry request was told: {answer}" for answer in outcomes if REFUSED not in answer]
    broken += [f"another request was told: {answer}" for answer in meanwhile if answer != "answered"]
    return broken + ["the log does not tell of each kill"] * (deaths != 2 * times)


def _print(answers: Counter[str], who: str) -> None:
    for answer, count in answers.items():
        sys.stdout.write(f"{who}: {count} x {answer}\n")


def _limit(group: Path) -> int:
    for name in LIMITS:
        with contextlib.suppress(OSError, ValueError):
            return int((group / name).read_text())
    raise CannotMeasure(f"{group} has no memory limit; see python -m bench.out_of_memory --help")


def _ask_on(service: ServiceProcess, over: Event) -> Counter[str]:
    answers: Counter[str] = Counter()
    while not over.is_set():
        answers[_ask(service, 0)] += 1
    return answers


def _ask(service: ServiceProcess, megabytes: int) -> str:
    """Return `answered`, or the reason of the failure."""
    body = json.dumps({"key": ["megabytes"], "value": [str(megabytes)]}).encode()
    try:
        answer = service.http("/hungry/prediction", body)
    except OSError as exc:
        return f"no answer: {exc}"
    return "answered" if answer.status == 200 else f"{answer.status} {answer.json['err_msg']}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.out_of_memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m bench.out_of_memory /sys/fs/cgroup/memory/small",
    )
    parser.add_argument("group", type=Path, help="the cgroup's folder")
    parser.add_argument("--times", type=int, default=2, help="hungry requests (default: %(default)s)")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        broken = measure(options.group, options.times)
    except (CannotMeasure, OSError) as exc:
        sys.stderr.write(f"not measured: {exc}\n")
        return 1
    sys.stdout.write("\n".join([*(broken or ["PASS"]), f"{time.monotonic() - began:.0f} s\n"]))
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
