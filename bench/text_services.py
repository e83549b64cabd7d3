"""Services of texts compared with the bare predictor: classes at 64 connections, and zero-shot.

Zero-shot has 20 callers, then one. Each round measures everything in turn, on the demo's model with one
instance of two threads. Only ratios count.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.console import Console

from bench.bare_predictor import BarePredictor, measure
from bench.load import CannotMeasure, Load, bodies_file, wrk
from bench.running import DEMO_MODEL, default_config
from bench.texts import headlines
from pipeline.models.serving_model import load_serving_model
from tests.support.text_services import TextProcess

CONNECTIONS, CALLERS, LABELS, BATCH = 64, 20, 10, 32
MIN_OF_LOOP, MIN_TOGETHER = 0.5, 1.6
TOPICS = tuple("体财科教军旅车房股农游文娱国故健")


def bodies(texts: Sequence[str], parameters: Sequence[dict[str, Any]]) -> list[bytes]:
    """Return requests of KServe v1, each with parameters of its own."""
    rows = zip(texts, parameters, strict=False)
    return [json.dumps({"instances": [{"text": t}], "parameters": p}).encode() for t, p in rows]


def asked(service: TextProcess, requests: Sequence[bytes], connections: int, seconds: float) -> Load:
    with bodies_file(requests) as file:
        path = f"/v1/models/{service.name}:predict"
        load = wrk(service.url, path, connections=connections, seconds=seconds, bodies=file)
    if load.errors:
        raise CannotMeasure(f"{load.errors} requests failed:\n{service.log[-2000:]}")
    return load


def sorted_loop(seconds: float) -> float:
    """Return the texts per second of the predictor alone, in batches of texts with similar lengths."""
    config = {**default_config(), "http_port": 18082}  # nothing listens
    config["op"]["bert"]["local_service_conf"]["thread_num"] = 2
    predictor = BarePredictor(DEMO_MODEL, config)
    texts = sorted(headlines(), key=len)
    measure(predictor, texts, BATCH, 0.5)
    return measure(predictor, texts, BATCH, seconds)["per_s"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python -m bench.text_services")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    options = parser.parse_args()
    labels = list(load_serving_model(DEMO_MODEL).labels)
    labels[0] = "entailment"  # the demo is no NLI model, but has the cost of one of its size
    texts = headlines()
    parameters = [{"labels": [TOPICS[(n + k) % len(TOPICS)] for k in range(LABELS)]} for n in range(CALLERS)]
    single, several = bodies(texts, [{}] * len(texts)), bodies(texts, parameters)
    of_loop, together = [], []
    zero_shot = ("--task", "zero-shot", "--labels", ",".join(labels), "--template", "这是关于{}的新闻")
    with (
        TextProcess(DEMO_MODEL, "--engine", "paddle") as classes,
        TextProcess(DEMO_MODEL, "--engine", "paddle", *zero_shot) as topics,
    ):
        for _ in range(options.rounds):
            served = asked(classes, single, CONNECTIONS, options.seconds).per_s
            loop = sorted_loop(options.seconds)
            many = asked(topics, several, CALLERS, options.seconds).per_s
            one = asked(topics, several, 1, options.seconds).per_s
            of_loop.append(served / loop)
            together.append(many / one)
            Console().print(
                f"classes {served:.0f}/s, the sorted loop {loop:.0f}/s; zero-shot with {LABELS} labels: "
                f"{CALLERS} callers {many:.1f}/s, one {one:.1f}/s"
            )
    Console().print(
        f"of the sorted loop {median(of_loop):.2f} (target {MIN_OF_LOOP}); callers together "
        f"{median(together):.2f} times one (target {MIN_TOGETHER})"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
