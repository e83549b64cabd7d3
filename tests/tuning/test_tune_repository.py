"""`paddlewheel tune --model-repository`: the lines of config.pbtxt, the candidates, and one tuning."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.protos.kserve_v2_pb2 import ModelConfig
from pipeline.errors import ConfigError
from pipeline.launch.command_options import TuneOptions
from pipeline.launch.tune_repository import tune_model
from pipeline.models.protobuf_text import parse_message
from pipeline.tuning.marked_lines import without_settings
from pipeline.tuning.marked_pbtxt import ModelGoal, ModelSettings, parse_model_settings, with_model_settings
from pipeline.tuning.tune import Measured, Round, Search, Settings
from tests.support.command_line import paddlewheel
from tests.support.triton_repository import write_model

SETTINGS = ModelSettings("", "", 3, 0, 8, 2)
TENSORS = """\
input { name: "instance_group" data_type: TYPE_FP32 dims: [ 2 ] }  # instance_group {
output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }
"""
CONFIG = f"""\
backend: "identity"
max_batch_size: 8
instance_group [
  {{ count: 1 kind: KIND_CPU }}  # one
]

dynamic_batching {{
  preferred_batch_size: [ 4 ]
  max_queue_delay_microseconds: 100
}}
{TENSORS}"""


def parse(text: str) -> ModelConfig:
    return parse_message(text, ModelConfig, "config.pbtxt")


@pytest.mark.parametrize("text", [CONFIG, CONFIG.replace("\n", "\r\n"), TENSORS, TENSORS.rstrip("\n"), ""])
def test_settings_are_written_between_marks_and_other_lines_stay(text: str) -> None:
    written = with_model_settings(text, SETTINGS, "f")
    assert with_model_settings(written, SETTINGS, "f") == written
    assert without_settings(written).rstrip() == text.rstrip()
    config, former = parse(written), parse(text)
    assert config.instance_group[0].count == 3
    assert config.dynamic_batching.max_queue_delay_microseconds == 2000
    assert config.dynamic_batching.preferred_batch_size == former.dynamic_batching.preferred_batch_size
    for each in (config, former):
        each.ClearField("instance_group")
        each.ClearField("dynamic_batching")
    assert config == former


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "max_batch_size: 8 instance_group { count: 1 }",
            "f, line 1: write instance_group on lines of its own",
        ),
        ("instance_group {\n} dynamic_batching {\n}", "f, line 2: write .* on lines of its own"),
        ("# tuned: begin\n", "f: a line '# tuned: begin' has no '# tuned: end'"),
    ],
)
def test_a_file_that_can_not_be_rewritten_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_model_settings(text, SETTINGS, "f")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("instance_group { kind: KIND_GPU }", "the instances run on GPUs"),
        ("instance_group { count: 1 } instance_group { count: 2 }", "several instance groups"),
        ('platform: "ensemble"', "an ensemble has no instances"),
        ("sequence_batching { }", "sequence_batching keeps its settings"),
    ],
)
def test_a_model_that_can_not_be_tuned_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_model_settings(parse(text))


def test_the_search_varies_instances_then_batching_then_its_delay() -> None:
    def measure(settings: Settings, round_s: float, until: float) -> Measured:
        ms = 20 / min(settings.instances, 4) / settings.batch - settings.delay_ms / 10
        latencies = (max(0.1, ms),) * round(1000 / max(0.1, ms))
        return Measured(settings, (Round(8, 1.0, latencies),))

    goal = ModelGoal((), (), 4, 60.0, batches=(1, 8))
    search = Search(goal, ModelSettings("", "", 1, 0, 1), measure)
    assert search.run().settings.name == "4 instances, dynamic batching, delay 2 ms"
    assert len(search.tried) <= goal.max_candidates()


def test_a_model_is_tuned_and_its_file_is_written(tmp_path: Path) -> None:
    path = write_model(tmp_path, "echo", CONFIG.replace('"instance_group"', '"X"')) / "config.pbtxt"
    path.parent.joinpath("1").mkdir(exist_ok=True)
    text = path.read_text("utf-8")
    options = ["--model-repository", tmp_path, "--budget", "5s", "--connections", "2"]
    done = paddlewheel("tune", *options)
    assert done.returncode == 0, done.stderr
    written = path.read_text("utf-8")
    assert f"written: {path}" in done.stderr and written.count("# tuned: begin") == 1
    assert without_settings(written) == text and parse(written).instance_group[0].count


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "other"}, "--model other: .* has no other/config.pbtxt; it has open, two"),
        ({}, "name the model to tune with --model, one of open, two"),
        ({"model": "open", "op": "a"}, "--op is for services"),
        ({"model": "open"}, r"input X of open has the dims \[-1\]: give requests with --sample"),
        ({"model": "two"}, "two/config.pbtxt is not tuned: config.pbtxt has several instance groups"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, options: dict[str, str], message: str) -> None:
    tensors = TENSORS.replace('"instance_group"', '"X"').replace("[ 2 ]", "-1")
    config = f'backend: "identity"\n{tensors}'
    (write_model(tmp_path, "open", config) / "1").mkdir(exist_ok=True)
    write_model(tmp_path, "two", f"{config}instance_group [ {{ count: 1 }}, {{ count: 1 }} ]")
    with pytest.raises(ConfigError, match=message):
        tune_model(TuneOptions(service=None, **options), tmp_path)
