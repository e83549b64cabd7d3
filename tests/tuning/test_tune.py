"""`paddlewheel tune`: what is tried and chosen, which requests are sent, what becomes of config.yml."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from pipeline.engines.onnxruntime.engine import ENGINE as ONNX_RUNTIME
from pipeline.errors import ConfigError
from pipeline.launch.command_options import TuneOptions
from pipeline.launch.tune_command import tune as command_tune
from pipeline.plugins import Library
from pipeline.tuning.candidate import opened
from pipeline.tuning.choice import describe_machine
from pipeline.tuning.marked_lines import other_machine, with_settings, without_settings
from pipeline.tuning.sample import Example, build_requests, read_sample_lines
from pipeline.tuning.tune import (
    BEAM_WIDTH,
    Goal,
    Measured,
    Point,
    Round,
    Search,
    Settings,
    choose,
    frontier,
    max_candidates,
    shapes,
    survivors,
)
from pipeline.tuning.tune_report import HEIGHT, WIDTH, draw
from tests.support import onnx_models
from tests.support.command_line import paddlewheel, refused
from tests.support.free_ports import free_port
from tests.support.service_process import APPS, ROOT, ServiceProcess, wait_until

SETTINGS = Settings("onnxruntime", "fp32", 2, 1, 32)
OTHER = msgspec.structs.replace(SETTINGS, instances=1)
EXAMPLE = Example("news", {"text": "an example", "language": "en"})
CONFIG = """\
# The service.
http_port: 18082   # HTTP

op:
  model:
    concurrency: 3   # three
    timeout: 1000
    local_service_conf:
      model_config: somewhere
      thread_num: 4  # four
      devices: ""
dag: {retry: 1}
"""


def measured(settings: Settings, *points: tuple[int, float, float]) -> Measured:
    """Settings that give each (connections, requests/s, ms), every request the same."""
    rounds = [Round(level, 1.0, (ms,) * int(per_s), 0.5) for level, per_s, ms in points]
    return Measured(settings, tuple(rounds))


# The grid and the choice:


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, [(2, 1), (1, 1)]),
        (2, [(3, 1), (2, 1), (1, 1), (1, 2)]),
        (4, [(5, 1), (4, 1), (2, 2), (1, 1), (1, 4)]),
        (6, [(7, 1), (6, 1), (4, 1), (2, 2), (1, 1), (1, 4), (1, 6)]),
    ],
)
def test_instances_times_threads_fill_the_cores(cores: int, expected: list[tuple[int, int]]) -> None:
    assert shapes(cores) == expected


def test_the_frontier_is_what_nothing_else_beats_in_both() -> None:
    points = frontier(
        [measured(SETTINGS, (1, 100, 5), (4, 300, 20)), measured(OTHER, (1, 90, 6), (4, 200, 8))]
    )
    assert [(settings, point.per_s, point.p99_ms) for settings, point in points] == [
        (SETTINGS, 100, 5),
        (OTHER, 200, 8),
        (SETTINGS, 300, 20),
    ]


@pytest.mark.parametrize(
    ("p99_ms", "expected", "met"),
    [
        (50.0, (SETTINGS, 16), True),  # the greatest throughput of all
        (10.0, (OTHER, 4), True),
        (5.0, (SETTINGS, 1), True),
        (1.0, (SETTINGS, 1), False),  # none holds it: the lowest
        (None, (OTHER, 4), True),  # 200 * 200 / 8 is more than 100 * 100 / 5 and 300 * 300 / 20
    ],
)
def test_the_choice_is_the_greatest_throughput_under_the_p99_or_the_knee(
    p99_ms: float | None, expected: tuple[Settings, int], met: bool
) -> None:
    tried = [measured(SETTINGS, (1, 100, 5), (16, 300, 20)), measured(OTHER, (1, 90, 6), (4, 200, 8))]
    chosen = choose(tried, p99_ms)
    assert ((chosen.settings, chosen.point.connections), chosen.met) == (expected, met)


def test_rounds_of_one_load_count_together() -> None:
    rounds = (Round(4, 1.0, (1.0,) * 10, 0.2), Round(4, 3.0, (2.0,) * 30, 0.6))
    assert Measured(SETTINGS, rounds).points() == [Point(4, 10.0, 2.0, 2.0, pytest.approx(20.0), 0.2, 2)]


def test_what_is_dominated_goes_no_further() -> None:
    best, worse = measured(SETTINGS, (1, 200, 5), (4, 400, 9)), measured(OTHER, (1, 100, 6), (4, 300, 20))
    assert survivors([worse, best, Measured(OTHER, (), "it crashes")], None, 2) == [best]
    lower_p99 = measured(OTHER, (1, 100, 2))
    assert survivors([lower_p99, best], None, 2) == [best, lower_p99]


def test_where_nothing_can_run_each_reason_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        choose([Measured(SETTINGS, (), "it is damaged"), Measured(OTHER, (), "no memory")], None)
    for one in (f"{SETTINGS.name}: it is damaged", f"{OTHER.name}: no memory"):
        assert one in caught.value.message


def test_the_picture_holds_every_point_and_names_the_choice() -> None:
    tried = [measured(SETTINGS, (1, 100, 5), (16, 300, 20)), Measured(OTHER, (), "it crashes")]
    drawn = ElementTree.fromstring(draw("<a title>", tried, choose(tried, 50.0), 50.0))
    name = "{http://www.w3.org/2000/svg}"
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in drawn.iter(f"{name}circle")]
    assert len(set(dots)) == 2
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in dots)
    texts = [text.text for text in drawn.iter(f"{name}text")]
    assert f"chosen: {SETTINGS.name}: 300/s, p99 20 ms at 16 connections" in texts
    assert "<a title>" in texts


# The search, of a machine that is made up:


class Machine:
    """Measures without time: what settings give follows from a formula; each costs the clock 4 seconds."""

    def __init__(self, best: Settings, broken: Sequence[str] = ()) -> None:
        self.now = 0.0
        self.measured: list[Settings] = []
        self._best = best
        self._broken = broken

    def measure(self, settings: Settings, round_s: float, until: float) -> Measured:
        self.measured.append(settings)
        self.now += 4
        if settings.engine in self._broken:
            return Measured(settings, (), f"{settings.engine} crashes")
        pairs = zip(msgspec.structs.astuple(settings), msgspec.structs.astuple(self._best), strict=True)
        pace = 1000 * 0.8 ** sum(ours != theirs for ours, theirs in pairs)
        return measured(settings, (1, pace / 4, 1000 / pace), (16, pace, 16_000 / pace))

    def search(self, baseline: Settings, budget_s: float, engines: Sequence[str] = ("a", "b")) -> Search:
        wanted = Goal(tuple(engines), ("fp32",), 4, budget_s, connections=(1, 16))
        return Search(wanted, baseline, self.measure, lambda: self.now)


BEST = Settings("b", "fp32", 2, 2, "auto", 1)
BASELINE = Settings("a", "fp32", 1, 1, 1, 0)


def test_the_search_goes_step_by_step_to_the_best() -> None:
    machine = Machine(BEST)
    search = machine.search(BASELINE, 600)
    assert search.run().settings == BEST
    assert len(search.tried) <= max_candidates(2, 1, 4, BEAM_WIDTH)
    assert search.left_out == []
    assert len(machine.measured) == len(search.tried) + 3 * len(search.finals)
    turn = list(search.finals)
    assert machine.measured[-3 * len(turn) :] == turn * 3  # in turns, with what config.yml says among them
    assert BASELINE in turn


def test_the_search_ends_with_its_budget_and_names_what_was_left_out() -> None:
    machine = Machine(BEST)
    search = machine.search(BASELINE, 40)
    search.run()
    assert machine.now <= 40 + 4
    assert search.left_out


def test_a_configuration_as_good_as_the_best_is_kept() -> None:
    assert Machine(BEST).search(BEST, 600).run().settings == BEST


def test_a_candidate_that_can_not_run_is_no_hindrance_to_the_others() -> None:
    machine = Machine(BEST, broken=["a"])
    search = machine.search(BASELINE, 600)
    assert search.run().settings == BEST
    assert search.baseline() is None


def test_where_no_candidate_can_run_the_search_ends_with_all_reasons() -> None:
    with pytest.raises(ConfigError, match=r"(?s)a fp32.*a crashes.*b fp32.*b crashes"):
        Machine(BEST, broken=["a", "b"]).search(BASELINE, 600).run()


# The sample:


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("s.csv", b"x", "name it *.txt (a text a line) or *.jsonl (a body a line)"),
        ("s.txt", b"", "is empty; write a request a line"),
        ("s.txt", b"a\n\nb\n", "line 2 is empty: mend or delete them"),
        ("s.txt", b"a\n\xff\n", "line 2 is no UTF-8; save the file as UTF-8"),
        ("s.jsonl", b'{"key":["a"],"value":["b"]}\n{"key"\n', "line 2 is no JSON"),
        ("s.jsonl", b"[1]\n", "line 1 is no body of a request: an object with one of key, inputs, instances"),
        ("s.txt", b"\n" * 9, "line 5 is empty and 4 more"),
    ],
)
def test_a_sample_with_a_flaw_is_refused_with_its_line(
    tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_sample_lines(file)
    assert str(file) in caught.value.message
    assert told in caught.value.message


def test_a_mark_of_utf_8_at_the_beginning_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text('{"key":["a"],"value":["b"]}\n', "utf-8-sig")
    assert read_sample_lines(file) == [(1, '{"key":["a"],"value":["b"]}')]


def test_a_text_takes_the_place_of_the_first_in_the_example(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("国足\r\n two\n", "utf-8")
    asked = build_requests(read_sample_lines(file), as_texts=True, example=EXAMPLE)
    assert [one.path for one in asked] == ["/news/prediction"] * 2
    assert json.loads(asked[0].body) == {"key": ["text", "language"], "value": ["国足", "en"]}
    (named,) = build_requests([(1, "de")], as_texts=True, example=EXAMPLE, key="language")
    assert json.loads(named.body)["value"] == ["an example", "de"]


def test_a_body_goes_where_its_form_is_asked(tmp_path: Path) -> None:
    bodies = ['{"key":[],"value":[]}', '{"inputs":[]}', '{"instances":[]}']
    asked = build_requests(list(enumerate(bodies, 1)), as_texts=False, example=EXAMPLE)
    assert [one.path for one in asked] == [
        "/news/prediction",
        "/v2/models/news/infer",
        "/v1/models/news:predict",
    ]
    assert [one.body.decode() for one in asked] == bodies


@pytest.mark.parametrize(("lines", "told"), [([], "--sample"), ([(1, "text")], "--key")])
def test_without_an_example_the_remedy_is_told(lines: list[tuple[int, str]], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        build_requests(lines, as_texts=True, example=Example("news", {}))


# config.yml:


@pytest.mark.parametrize(
    "text",
    [
        CONFIG,
        CONFIG.replace("\n", "\r\n"),
        CONFIG.replace("concurrency: 3   # three", "concurrency:\n      3"),
        CONFIG.replace("  model:\n", "  model: &section\n"),
        CONFIG.replace("dag: {retry: 1}\n", "dag: {retry: 1}"),
        CONFIG.replace("    timeout: 1000\n", "\n    # a comment\n\n    batch_size: 4\n"),
        CONFIG.replace("    concurrency", "    auto_batching_timeout: 3\n    concurrency"),
    ],
)
def test_the_settings_are_written_and_all_else_stays(text: str) -> None:
    written = with_settings(text, "model", SETTINGS)
    before, after = yaml.safe_load(text), yaml.safe_load(written)
    section = after["op"]["model"]
    assert {key: section[key] for key in SETTINGS.of_op()} == SETTINGS.of_op()
    model = section["local_service_conf"]
    assert {key: model[key] for key in SETTINGS.of_model()} == SETTINGS.of_model()
    assert (model["model_config"], after["dag"], after["http_port"]) == ("somewhere", before["dag"], 18082)
    assert without_settings(written) == text
    assert with_settings(with_settings(text, "model", OTHER), "model", SETTINGS) == written
    assert written.count("# tuned: begin") == written.count("# tuned: end") == 2


@pytest.mark.parametrize(
    "text",
    [
        "op: {model: {local_service_conf: {model_config: m}}}\n",
        CONFIG.replace("concurrency: 3   # three", "concurrency: &n 3").replace("1000", "*n"),
        "http_port: 18082\n",
    ],
)
def test_what_can_not_be_rewritten_is_left_for_the_hand(text: str) -> None:
    with pytest.raises(ConfigError, match=r"put in by hand: op\.model: {'concurrency': 2"):
        with_settings(text, "model", SETTINGS)


def test_what_can_not_be_rewritten_is_refused_before_anything_is_measured(service: Path) -> None:
    config = service / "config.yml"
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text("utf-8")), default_flow_style=True))
    told = refused(tune(service))
    assert f"{config}: op.model is not written a key a line (it is in braces, or has anchors)" in told
    assert "by hand" not in told


def test_a_mark_without_its_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no '# tuned: end' after it"):
        without_settings(CONFIG.replace("    timeout", "    # tuned: begin\n    timeout"))


def test_the_machine_is_noted_in_the_lines(tmp_path: Path) -> None:
    config = tmp_path / "config.yml"
    written = with_settings(CONFIG, "model", SETTINGS)
    config.write_text(written, "utf-8")
    assert other_machine(config) == ""
    config.write_text(written.replace(describe_machine(), "Another CPU, 96 cores"), "utf-8")
    assert other_machine(config) == "Another CPU, 96 cores"


# The command:


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of config.yml for a service with a small ONNX model, and of `sample.jsonl`."""
    monkeypatch.setenv("SERVICE_CONFIG", os.fspath(tmp_path / "config.yml"))
    model = onnx_models.serving(tmp_path)
    (tmp_path / "config.yml").write_text(CONFIG.replace("somewhere", model.name), "utf-8")
    bodies = []
    for length in (3, 9, 20):
        values = [json.dumps([[number] * length]) for number in (7, 0, 1)]
        bodies.append(json.dumps({"key": list(onnx_models.FEEDS), "value": values}))
    (tmp_path / "sample.jsonl").write_text("\n".join(bodies) + "\n", "utf-8")
    return tmp_path


def tune(service: Path, *options: str | Path, sample: str = "sample.jsonl") -> Any:
    given = ["--config", service / "config.yml", "--sample", service / sample, "--connections", "1,4"]
    return paddlewheel("tune", APPS / "model.py", *given, *options)


def test_a_service_is_tuned_and_serves_with_what_was_found(service: Path) -> None:
    done = tune(service, "--budget", "15s", "--p99", "10s", "--engine", "onnxruntime")
    assert done.returncode == 0, done.stderr
    assert "Op model: at most" in done.stderr
    assert "to go further:" in done.stderr
    written = (service / "config.yml").read_text("utf-8")
    report = json.loads((service / "tuned.json").read_text("utf-8"))
    chosen = msgspec.convert(report["chosen"]["settings"], Settings)
    assert written == with_settings(CONFIG.replace("somewhere", "served_classifier"), "model", chosen)
    assert chosen.name in done.stderr
    assert report["machine"] == describe_machine()
    assert all(math.isfinite(one["p99_ms"]) for each in report["tried"] for one in each["points"])
    drawn = ElementTree.fromstring((service / "tuned.svg").read_text("utf-8"))
    assert drawn.tag.endswith("svg")
    assert sorted(path.name for path in service.iterdir() if path.name.startswith(".")) == []
    config = yaml.safe_load(written)["op"]
    body = json.loads((service / "sample.jsonl").read_text("utf-8").splitlines()[0])
    with ServiceProcess(APPS / "model.py", {"op": config}, folder=service) as running:
        assert running.predict(dict(zip(body["key"], body["value"], strict=True)))["logits"]


def test_what_is_changed_in_the_file_meanwhile_stays_and_a_script_may_print(service: Path) -> None:
    config, script = service / "config.yml", service / "web_service.py"
    text = (APPS / "model.py").read_text("utf-8")
    script.write_text(text.replace("import json\n", 'import json\nprint("[loading]: a: b")\n', 1), "utf-8")
    given = ["--config", config, "--sample", service / "sample.jsonl", "--connections", "1"]
    command = [sys.executable, "-m", "pipeline", "tune", script, *given, "--budget", "5s"]
    command += ["--engine", "onnxruntime", "--report", service / "v1.0"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "onnxruntime fp32" in line:
                config.write_text(config.read_text("utf-8") + "# added meanwhile\n", "utf-8")
                break
        told = process.stderr.read()
    assert process.returncode == 0, told
    written = config.read_text("utf-8")
    assert written.endswith("# added meanwhile\n")
    assert "# tuned: begin" in written
    assert (service / "v1.0.json").is_file()
    assert (service / "v1.0.svg").is_file()


def test_a_dry_run_prints_the_change_alone(service: Path) -> None:
    before = (service / "config.yml").read_bytes()
    done = tune(service, "--budget", "5s", "--engine", "onnxruntime", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("--- ")
    assert "+    # tuned: begin, by paddlewheel tune on" in done.stdout
    assert (service / "config.yml").read_bytes() == before
    assert not list(service.glob("tuned*"))


def test_a_start_tells_that_the_lines_come_from_another_machine(service: Path) -> None:
    config = service / "config.yml"
    text = with_settings(config.read_text("utf-8"), "model", SETTINGS)
    text = text.replace(describe_machine(), "Another CPU, 96 cores").replace("18082", str(free_port()))
    config.write_text(text, "utf-8")
    with ServiceProcess(APPS / "model.py", env={"SERVICE_CONFIG": os.fspath(config)}, wait=False) as running:
        running.wait_for_log("was tuned on another machine (Another CPU, 96 cores): tune it here")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--p99", "fast"], "--p99 'fast' is no time; write it as 50ms"),
        (["--budget", "1s"], "--budget: from 5 seconds to 24 hours"),
        (["--op", "other"], "--op other: "),
        (["--precision", "fp7"], "fp7 is none of fp32, bf16"),
        (["--connections", "0"], "from 1 to 1024, e.g. 1,4,16,64"),
        (["--connections", "1,many"], "from 1 to 1024, e.g. 1,4,16,64"),
        (["--engine", "nothing"], "--engine nothing: there is none of that name, only onnxruntime, openvino"),
        (["--report", "/proc/none/report"], "--report /proc/none/report: /proc/none is no folder"),
        (["--engine", "paddle"], "paddle: engine: paddle does not run"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(service: Path, options: list[str], told: str) -> None:
    done = tune(service, *options)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_request_that_the_service_refuses_is_told_with_its_line(service: Path) -> None:
    file = service / "bad.jsonl"
    good = (service / "sample.jsonl").read_text("utf-8").splitlines()[0]
    file.write_text(f'{good}\n{{"key":["input_ids"],"value":["[[1]]"]}}\n', "utf-8")
    told = refused_line(tune(service, "--engine", "onnxruntime", sample="bad.jsonl").stderr)
    assert f"{file} line 2 is refused by the service: " in told


def test_what_the_script_gives_itself_is_refused(service: Path) -> None:
    script = service / "web_service.py"
    text = (APPS / "model.py").read_text("utf-8")
    script.write_text(text.replace('name="model",', 'name="model", concurrency=2,'), "utf-8")
    told = refused(paddlewheel("tune", service, "--sample", service / "sample.jsonl"))
    assert "the script gives concurrency to Op model, which goes before config.yml" in told


def test_an_engine_that_is_named_and_not_installed_is_told_with_its_line_of_pip(
    service: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ONNX_RUNTIME, "library", Library("not_there_at_all", "a-package[run]"))
    options = TuneOptions(
        service=APPS / "model.py", budget="1m", config=service / "config.yml", engine=("onnxruntime",)
    )
    with pytest.raises(ConfigError) as caught:
        command_tune(options)
    assert "ONNX Runtime, which is not installed here: pip install 'a-package[run]'" in caught.value.message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_is_interrupted_leaves_nothing_behind(service: Path, number: int) -> None:
    before = sorted(service.iterdir())
    given = ["--config", service / "config.yml", "--sample", service / "sample.jsonl"]
    # As from a terminal: what runs the tests may ignore SIGHUP, and then so would this.
    as_usual = (
        f"import os, signal, sys; signal.signal({number:d}, signal.SIG_DFL); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    tune = [sys.executable, "-m", "pipeline", "tune", APPS / "model.py", *given]
    command = [sys.executable, "-c", as_usual, *tune]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "onnxruntime fp32, 3 x 4" in line:  # the first candidate is being started
                process.send_signal(number)
                break
        told = process.stderr.read()
    assert process.returncode == 130
    assert told.endswith("Interrupted: nothing is written\n")
    assert sorted(service.iterdir()) == before


def test_the_next_start_removes_what_a_killed_tune_left_behind(
    service: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    temporary = tmp_path_factory.mktemp("tmp")
    monkeypatch.setenv("TMPDIR", str(temporary))
    before = set(service.iterdir())
    given = ["--config", service / "config.yml", "--sample", service / "sample.jsonl"]
    command = [sys.executable, "-m", "pipeline", "tune", APPS / "model.py", *given]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("onnxruntime fp32, 3 x 4" in line for line in process.stderr)
        (configuration,) = set(service.iterdir()) - before
        with opened(APPS / "model.py", service / "config.yml", "op"):
            assert configuration.exists()  # for its owner lives
        process.kill()
    assert set(service.iterdir()) - before == {configuration}
    # tempfile tries a folder with a file of eight random characters, and a child may be killed meanwhile.
    assert [path for path in temporary.iterdir() if not re.fullmatch("[a-z0-9_]{8}", path.name)] == []

    def is_removed() -> bool:
        with opened(APPS / "model.py", service / "config.yml", "op"):
            return not configuration.exists()

    # A child of the tune that is about to end may still hold the lock of the file.
    wait_until(is_removed, "the next start has removed the file")
    assert set(service.iterdir()) == before


def test_a_folder_without_a_service_is_refused(tmp_path: Path) -> None:
    assert "name a service's folder or its script" in refused(paddlewheel("tune", tmp_path))


def refused_line(stderr: str) -> str:
    assert "Traceback" not in stderr
    return stderr.strip().splitlines()[-1]
