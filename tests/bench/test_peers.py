"""What bench/peers believes: pinned peers, answers that are alike, ratios of turns side by side, and pages
that say what was measured."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from rich.console import Console
from tokenizers import BertWordPieceTokenizer

from bench.load import CannotMeasure
from bench.peers.__main__ import Run, quietest
from bench.peers.comparison import compare_answers
from bench.peers.dialects import PAIRS, V2, Answer
from bench.peers.figures import Choice, Pair, Report, Row, Turn
from bench.peers.loops import EVERYTHING, cut
from bench.peers.neighbours import neighbours
from bench.peers.ours import OurService, our_service
from bench.peers.pages import DOCS, LANGUAGES, with_tables, write
from bench.peers.plot import draw
from bench.peers.scenarios import MIXED, PLAN, SHORT, Scenario, get_model, scenarios
from bench.peers.subjects import NO_SETTING, OURS, SUBJECTS, Peer, Setting, select_subjects
from bench.peers.wording import words_in
from bench.texts import headlines, mixed_lengths
from tests.support.service_process import is_running

SCENARIO = ("2x128", SHORT, 64)


@pytest.fixture(scope="module")
def service() -> Iterator[OurService]:
    with our_service(OURS, get_model("demo"), headlines()[0]) as started:
        yield started


def turn(per_s: float, *, asked: bool = True) -> Turn:
    latency = 64e3 / per_s if asked else None
    return Turn(per_s, 1e3 / per_s, 300, 0, 0.25, latency, latency)


def row(
    key: str,
    theirs: list[float],
    ours: list[float],
    *,
    asked: bool = True,
    setting: Setting = NO_SETTING,
) -> Row:
    pairs = [Pair(turn(own), turn(their, asked=asked)) for own, their in zip(ours, theirs, strict=True)]
    return Row(*SCENARIO, key, key.title(), 2, 1.5, 2.5, tuple(pairs), *setting)


@pytest.fixture
def report() -> Report:
    return Report(
        machine="a machine, 2 cores",
        rows=[
            row("mosec", [400, 900, 500], [800, 600, 1000], setting=Setting(8, 1)),
            row("ray", [100, 100, 100], [1000, 1000, 1000]),
            row("loop", [2000, 2000, 2000], [1000, 1000, 1000], asked=False),
        ],
        choices=[Choice("2x128", "ours", "onnxruntime", "fp32", 3.0)],
        left_out={"TorchServe": "it is archived"},
    )


def test_our_answers_are_the_same_in_both_dialects(service: OurService) -> None:
    texts = headlines()[:40]
    pairs = service.endpoint(PAIRS).ask_all(texts)
    compare_answers(pairs, service.endpoint(V2).ask_all(texts))
    assert len({answer.label for answer in pairs}) > 1


def test_our_service_is_started_as_auto_chooses_and_tells_what_it_takes(service: OurService) -> None:
    assert service.choice.engine != "auto"
    assert service.choice.precision == "fp32"
    processes = service.server.processes
    assert len(processes.all()) > 1
    assert processes.resident_mb() > 10
    assert processes.cpu_s() > 0
    assert service.server.start_s > 0


@pytest.mark.parametrize("other", [Answer("culture", 0.9), Answer("sports", 0.8)])
def test_other_answers_are_told_before_anything_is_timed(other: Answer) -> None:
    with pytest.raises(CannotMeasure, match="does not answer as we do"):
        compare_answers([Answer("sports", 0.9)], [other])


def test_a_lower_precision_may_answer_a_few_texts_otherwise() -> None:
    ours = [Answer("sports", 0.9)] * 100
    compare_answers(ours, [Answer("sports", 0.8)] * 91 + [Answer("culture", 0.5)] * 9, lower=True)
    with pytest.raises(CannotMeasure, match="11 times"):
        compare_answers(ours, [Answer("sports", 0.8)] * 89 + [Answer("culture", 0.5)] * 11, lower=True)


@pytest.mark.parametrize(
    "environment",
    sorted(
        {subject.environment for subject in SUBJECTS if isinstance(subject, Peer) and subject.environment}
    ),
)
def test_a_peer_is_pinned_and_its_lock_names_no_host(root: Path, environment: str) -> None:
    lines = (root / "requirements" / "peers" / f"{environment}.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line)] == []


def test_mixed_texts_are_as_long_as_the_pages_say() -> None:
    texts = mixed_lengths()
    assert {min(map(len, texts)), max(map(len, texts))} == {5, 400}
    tokenizer = BertWordPieceTokenizer(str(get_model("demo").directory / "vocab.txt"), lowercase=True)
    tokens = [len(encoded.ids) for encoded in tokenizer.encode_batch(texts)]
    assert round(np.mean(tokens)) == 57
    assert round(np.percentile(tokens, 90)) == 112


@pytest.mark.parametrize(("window", "batch"), [(1, 1), (20, 8), (64, 32), (EVERYTHING, 8)])
def test_a_loop_runs_each_text_once_in_batches_from_its_window(window: int, batch: int) -> None:
    texts = [f"{number}" + "字" * (number * 7 % 90) for number in range(200)]
    batches = cut(texts, window, batch)
    assert sorted(text for some in batches for text in some) == sorted(texts)
    assert max(map(len, batches)) == batch
    for some in batches:
        numbers = [texts.index(text) // (window or len(texts)) for text in some]
        assert len(set(numbers)) == 1
        assert some == sorted(some, key=len)


def test_a_plan_is_narrowed_by_what_is_asked_for() -> None:
    (only,) = scenarios(["2x128"], [MIXED], None)
    assert only == ("2x128", MIXED, PLAN["2x128", MIXED])
    assert [each.connections for each in scenarios(["2x128"], [SHORT, MIXED], [7])] == [(7,), (7,)]
    large, small = (
        [subject.key for subject in select_subjects(model, ("mosec", "ours-auto-precision"))]
        for model in ("12x768", "2x128")
    )
    assert large == ["ours-auto-precision", "mosec"]
    assert small == ["mosec"]


def test_a_ratio_is_that_of_turns_side_by_side(report: Report) -> None:
    ours, mosec, *_ = report.get_rows(SCENARIO)
    assert mosec.ratios() == [0.5, 1.5, 0.5]
    assert mosec.ratio() == 0.5
    assert ours.ratio() == 1
    assert len(ours.pairs) == 9


@pytest.mark.parametrize(("tries", "expected"), [(1, 0.5), (2, 0.3), (5, 0.05)])
def test_a_pair_beside_other_work_is_measured_again_and_the_quietest_kept(
    tries: int, expected: float
) -> None:
    others = iter([0.5, 0.3, 0.4, 0.05, 0.0])

    def take() -> Pair:
        return Pair(turn(1), msgspec.structs.replace(turn(1), others=next(others)))

    assert quietest(take, tries).theirs.others == expected


def test_other_work_is_there_while_it_is_asked_for_and_then_gone() -> None:
    with neighbours(2) as beside:
        pids = beside.all()
        assert len(pids) == 2
        assert all(map(is_running, pids))
    assert not any(map(is_running, pids))


def test_what_is_measured_anew_takes_the_place_of_what_was(report: Report) -> None:
    report.add(row("ray", [500], [1000]))
    found = {each.key: each.ratio() for each in report.get_rows(SCENARIO)}
    assert found == {"ours": 1, "mosec": 0.5, "ray": 0.5, "loop": 2}


def test_a_report_is_written_with_tables_and_plots_and_read_again(report: Report, tmp_path: Path) -> None:
    write(report, tmp_path / "report.json")
    assert msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=Report) == report
    endings = ["report.json", "report.md", "report.svg", "report_zh.md", "report_zh.svg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == endings
    table = (tmp_path / "report.md").read_text("utf-8")
    mosec = "| Mosec (batches of 8, wait 1 ms) | 0.50 (1.00, 2.00) |"
    assert f"{mosec} 500 | 128.0 | 128.0 | 2.000 | 1.00 | 0.25 | 300 | 1.5 | 0 |" in table
    assert "| Loop | 2.00 (1.00, 0.50) | 2,000 |  |  |" in table
    assert "headlines, a machine, 2 cores.**" in table
    assert "TorchServe" in table


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_plot_has_a_bar_for_each_subject_as_long_as_its_ratio(report: Report, language: str) -> None:
    bars, title = ".//{*}rect[@height='13']", words_in(language).plot
    drawing = ElementTree.fromstring(draw(report, language))
    widths = [float(bar.attrib["width"]) for bar in drawing.findall(bars)]
    assert np.allclose(np.array(widths) / widths[0], [1, 0.5, 0.1, 2], atol=0.01)
    texts = [text.text for text in drawing.findall(".//{*}text")]
    assert title in texts
    assert "0.50  (500/s)" in texts


def test_a_page_without_a_place_for_the_tables_is_told(report: Report) -> None:
    with pytest.raises(CannotMeasure, match="no place"):
        with_tables("# A page\n", report, "en")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_pages_say_what_the_json_beside_them_has(language: str) -> None:
    measured = msgspec.json.decode((DOCS / "peers.json").read_bytes(), type=Report)
    page = (DOCS / f"benchmarks{LANGUAGES[language]}.md").read_text("utf-8")
    assert page == with_tables(page, measured, language)
    assert (DOCS / f"peers{LANGUAGES[language]}.svg").read_text("utf-8") == draw(measured, language)
    assert {each.key for each in measured.rows} <= {subject.key for subject in SUBJECTS}


class TrialRuns:
    """Stands in for `Comparison`: a peer whose throughput depends on its setting and the connections."""

    def __init__(self, per_s: dict[tuple[int, int], float]) -> None:
        self._per_s = per_s
        self._batch = 0

    @contextlib.contextmanager
    def with_subject(self, subject: Peer, setting: Setting) -> Iterator[tuple[None, TrialRuns, None]]:
        self._batch = setting.batch
        yield None, self, None

    @property
    def measured(self) -> TrialRuns:
        return self

    def turn(self, connections: int, seconds: float) -> Turn:
        return turn(self._per_s[self._batch, connections])

    def wait_until_idle(self) -> None:
        """Nothing is left."""


def test_each_number_of_connections_has_the_fastest_setting_of_a_peer() -> None:
    peer = next(subject for subject in SUBJECTS if subject.key == "triton")
    run: Any = Run(argparse.Namespace(), Report(), Console())
    per_s = {(8, 20): 900, (16, 20): 800, (32, 20): 500, (8, 64): 900, (16, 64): 950, (32, 64): 990}
    best = run._find_best_settings(TrialRuns(per_s), peer, Scenario("2x128", SHORT, (20, 64)))
    assert best == {20: Setting(8), 64: Setting(32)}
