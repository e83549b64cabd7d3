"""`paddlewheel new`, `run` and `config`: what they write, start, print and refuse."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from client.protos.pipeline_service_pb2 import Request, Tensor
from client.values import parse_value
from pipeline.cli import main
from pipeline.config import load_config
from pipeline.config_reference import config_reference
from pipeline.errors import InvalidInput
from pipeline.feeds import example_body, read_feeds
from pipeline.serving_model import Variable, load_serving_model, write_serving_model
from service_process import ROOT, ServiceProcess, free_port, key_value
from tests import models

MAIN = ROOT / "pipeline" / "__main__.py"
IDS = Variable("input_ids", "input_ids", "int64", (-1, -1))
MASK = Variable("mask", "mask", "int64", (-1, -1))
IMAGE = Variable("image", "image", "float32", (-1, 3, -1, -1))
PIXELS = Variable("pixels", "pixels", "uint8", (-1, 2))
HALVES = Variable("halves", "halves", "bfloat16", (-1, 2))


def paddlewheel(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def new(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`paddlewheel new`, in this process: it only writes files."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(["new", *map(str, arguments)])
        except SystemExit as left:  # argparse
            code = int(str(left.code))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """input_ids, token_type_ids, attention_mask -> logits of 3 labels; all may be padded."""
    return models.classifier(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without labels and padding, of which only the description is looked at."""
    return described_model(tmp_path_factory.mktemp("described") / "model", [IMAGE], ["doubled"])


def described_model(
    target: Path, feeds: list[Variable], fetches: list[str], labels: tuple[str, ...] = ()
) -> Path:
    program = target.parent / "inference.json"
    program.write_text('{"base_code":{"magic":"pir"}}', encoding="utf-8")
    outputs = [Variable(f"fetch_name_{i}", name, "float32", (-1, 3)) for i, name in enumerate(fetches)]
    write_serving_model(target, program, None, feeds, outputs, labels=labels)
    return target


@pytest.fixture(scope="module")
def service(classifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """What `new` wrote, started as it stands."""
    folder = tmp_path_factory.mktemp("apps") / "news"
    ports = {"http_port": free_port(), "rpc_port": free_port()}
    done = paddlewheel(
        "new", folder, "--model", classifier,
        "--http-port", str(ports["http_port"]), "--rpc-port", str(ports["rpc_port"]),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with ServiceProcess(folder, ports, name="news") as running:
        yield running


def feeds_of(*rows: list[int]) -> dict[str, str]:
    """A request to the classifier with these ids, none of them padding."""
    ones = [[1] * len(row) for row in rows]
    zeros = [[0] * len(row) for row in rows]
    arrays = {"input_ids": rows, "token_type_ids": zeros, "attention_mask": ones}
    return {name: json.dumps(array) for name, array in arrays.items()}


class TestNewService:
    def test_it_answers_texts_of_numbers_with_the_model_s_output_and_its_label(
        self, service: ServiceProcess, classifier: Path
    ) -> None:
        answer = service.predict(feeds_of([5, 9, 2], [7, 1, 3]))
        logits = np.array(parse_value(answer["logits"]))
        assert logits.shape == (2, 3)
        labels = load_serving_model(classifier).labels
        assert parse_value(answer["label"]) == [labels[i] for i in logits.argmax(-1)]

    def test_a_row_has_the_same_answer_alone_and_beside_another(self, service: ServiceProcess) -> None:
        both = np.array(parse_value(service.predict(feeds_of([5, 9, 2], [7, 1, 3]))["logits"]))
        alone = [parse_value(service.predict(feeds_of(row))["logits"]) for row in ([5, 9, 2], [7, 1, 3])]
        np.testing.assert_allclose(np.concatenate(alone), both, atol=1e-5)

    def test_it_takes_tensors_over_grpc(self, service: ServiceProcess) -> None:
        tensors = [
            Tensor(name=name, elem_type=0, shape=[1, 3], int64_data=json.loads(text)[0])
            for name, text in feeds_of([5, 9, 2]).items()
        ]
        response = service.rpc(Request(name="news", method="prediction", tensors=tensors))
        assert response.err_no == 0, response.err_msg
        from_texts = service.predict(feeds_of([5, 9, 2]))
        assert dict(zip(response.key, response.value, strict=True)) == from_texts

    def test_its_script_shows_a_body_that_it_answers(self, service: ServiceProcess, classifier: Path) -> None:
        body = example_body(load_serving_model(classifier).feeds)
        assert service.http("/news/prediction", body).json["err_no"] == 0

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ("[[1, 2", "not a list of numbers"),
            ("hello", "not a list of numbers"),
            ("[[1, 2], [3]]", "rows of equal length"),
            ("[" * 50_000, "not a list of numbers"),
            ("[]", "empty list"),
            ('[["1"]]', "no number int64 can hold"),
            ("[[1, null, 3]]", "no number int64 can hold"),
            ('{"ids": [1]}', "no number int64 can hold"),
            ("[[1, 2.5, 3]]", "2.5, which is no int64"),
            ("[[1, NaN, 3]]", "nan, which is no int64"),
            ("[1, 2, 3]", "has shape (3,), expected int64 [-1, -1]"),
        ],
        ids=lambda text: text[:20],
    )
    def test_what_is_no_feed_is_refused_by_name(self, service: ServiceProcess, given: str, told: str) -> None:
        answer = service.http("/news/prediction", key_value({**feeds_of([1, 2, 3]), "input_ids": given}))
        assert (answer.status, answer.json["err_no"]) == (400, 5000)
        assert "feed 'input_ids'" in answer.json["err_msg"] and told in answer.json["err_msg"]

    def test_a_mask_of_another_length_is_refused_and_not_padded(self, service: ServiceProcess) -> None:
        answer = service.http(
            "/news/prediction", key_value({**feeds_of([1, 2, 3]), "attention_mask": "[[1, 1]]"})
        )
        assert answer.status == 400
        assert "attention_mask [1, 2]" in answer.json["err_msg"]

    def test_a_missing_feed_is_refused_with_a_body_to_send(self, service: ServiceProcess) -> None:
        answer = service.http("/news/prediction", key_value({"text": "hello"}))
        assert answer.status == 400
        assert "feed 'input_ids' is missing" in answer.json["err_msg"]
        body = answer.json["err_msg"].partition("under its name: ")[2]
        assert service.http("/news/prediction", body).json["err_no"] == 0


class TestFeeds:
    def test_a_feed_of_floats_takes_integers(self) -> None:
        array = read_feeds({"image": "[[[[1]], [[2]], [[3]]]]"}, [IMAGE])["image"]
        assert array.dtype == np.float32 and array.ravel().tolist() == [1.0, 2.0, 3.0]

    def test_a_feed_of_bytes_takes_what_fits_alone(self) -> None:
        assert read_feeds({"pixels": "[[0, 255]]"}, [PIXELS])["pixels"].dtype == np.uint8
        with pytest.raises(InvalidInput, match="'pixels' holds 256, which is no uint8"):
            read_feeds({"pixels": "[[0, 256]]"}, [PIXELS])

    def test_floats_too_large_are_refused(self) -> None:
        with pytest.raises(InvalidInput, match=r"'image' holds 1e\+300, which is no float32"):
            read_feeds({"image": "[[[[1e300]], [[2]], [[3]]]]"}, [IMAGE])

    def test_a_dtype_without_a_text_form_asks_for_a_tensor(self) -> None:
        with pytest.raises(InvalidInput, match=r"'halves' is bfloat16, .* tensor"):
            read_feeds({"halves": "[[1, 2]]"}, [HALVES])
        bits = np.zeros((1, 2), np.uint16)
        assert read_feeds({"halves": bits}, [HALVES])["halves"] is bits

    def test_feeds_with_different_numbers_of_rows_are_refused(self) -> None:
        with pytest.raises(InvalidInput, match=r"differ in rows: input_ids \[2\], mask \[1\]"):
            read_feeds({"input_ids": "[[1], [2]]", "mask": "[[1]]"}, [IDS, MASK])

    def test_feeds_may_differ_in_length_unless_they_are_alike(self) -> None:
        inputs = {"input_ids": "[[1, 2]]", "mask": "[[1]]"}
        assert read_feeds(inputs, [IDS, MASK])["mask"].shape == (1, 1)
        with pytest.raises(InvalidInput, match=r"differ in shape: input_ids \[1, 2\], mask \[1, 1\]"):
            read_feeds(inputs, [IDS, MASK], alike=["input_ids", "mask"])


class TestWhatNewWrites:
    def test_both_files_and_nothing_else(self, described: Path, tmp_path: Path) -> None:
        done = new(tmp_path / "app", "--model", described)
        assert done.returncode == 0, done.stderr
        assert sorted(path.name for path in (tmp_path / "app").iterdir()) == ["config.yml", "web_service.py"]
        config = load_config(tmp_path / "app" / "config.yml")
        assert (config.http_port, config.rpc_port) == (18082, 8088)
        conf = config.op["app"].local_service_conf
        assert conf is not None and conf.model_dir == str(described)
        assert "curl -s localhost:18082/app/prediction" in done.stdout

    def test_it_imports_no_framework(self, classifier: Path, tmp_path: Path) -> None:
        code = (
            "import sys; from pipeline.cli import main; main(sys.argv[1:]); "
            "sys.exit(bool({'paddle', 'onnxruntime', 'torch'} & set(sys.modules)))"
        )
        command = [sys.executable, "-c", code, "new", str(tmp_path / "app"), "--model", str(classifier)]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0

    def test_a_model_below_the_folder_is_named_relative_to_it(self, classifier: Path, tmp_path: Path) -> None:
        shutil.copytree(classifier, tmp_path / "app" / "models" / "v1")
        done = paddlewheel("new", "app", "--model", "app/models/v1", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        conf = load_config(tmp_path / "app" / "config.yml").op["app"].local_service_conf
        assert conf is not None and conf.model_dir == "models/v1"

    @pytest.mark.parametrize("name", ["yes", "null", "on", "新闻", "a-b.c_1"])
    def test_a_name_stays_what_it_is_in_yaml_and_python(
        self, described: Path, tmp_path: Path, name: str
    ) -> None:
        done = new(tmp_path / "app", "--model", described, "--name", name)
        assert done.returncode == 0, done.stderr
        assert list(load_config(tmp_path / "app" / "config.yml").op) == [name]
        script = ast.parse((tmp_path / "app" / "web_service.py").read_text(encoding="utf-8"))
        assert name in {node.value for node in ast.walk(script) if isinstance(node, ast.Constant)}

    def test_labels_of_any_text_stay_what_they_are(self, tmp_path: Path) -> None:
        labels = ('say "no"', "back\\slash", "两\n行")
        model = described_model(tmp_path / "model", [IDS], ["scores"], labels)
        assert new(tmp_path / "app", "--model", model).returncode == 0
        script = ast.parse((tmp_path / "app" / "web_service.py").read_text(encoding="utf-8"))
        (assigned,) = (
            node.value
            for node in script.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LABELS"
        )
        assert tuple(ast.literal_eval(assigned)) == labels

    def test_labels_that_belong_to_no_single_output_are_left_to_the_user(self, tmp_path: Path) -> None:
        model = described_model(tmp_path / "model", [IDS], ["left", "right"], ("a", "b", "c"))
        assert new(tmp_path / "app", "--model", model).returncode == 0
        assert "LABELS" not in (tmp_path / "app" / "web_service.py").read_text(encoding="utf-8")


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence on stderr of a command that left with exit code 2."""
    assert done.returncode == 2, done
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    return done.stderr


class TestWhatNewRefuses:
    def test_a_folder_that_holds_something(self, described: Path, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").touch()
        assert "notes.txt" in refused(new(tmp_path, "--model", described, "--name", "app"))
        assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]

    def test_a_file_in_place_of_the_folder(self, described: Path, tmp_path: Path) -> None:
        (tmp_path / "app").touch()
        assert "is a file" in refused(new(tmp_path / "app", "--model", described))

    def test_a_model_that_is_none(self, tmp_path: Path) -> None:
        told = refused(new(tmp_path / "app", "--model", tmp_path / "nowhere"))
        assert "nowhere" in told
        assert not (tmp_path / "app").exists()

    @pytest.mark.parametrize("name", ["metrics", "1st", "a/b", 'a"b', "a b", "a\nb"])
    def test_a_name_that_can_t_be_served(self, described: Path, tmp_path: Path, name: str) -> None:
        told = refused(new(tmp_path / "app", "--model", described, "--name", name))
        assert "can't be named" in told
        assert not (tmp_path / "app").exists()

    def test_an_alias_that_would_end_the_string_it_stands_in(self, tmp_path: Path) -> None:
        feed = Variable("x", '"""; import os', "int64", (-1, 2))
        model = described_model(tmp_path / "model", [feed], ["scores"])
        assert "alias" in refused(new(tmp_path / "app", "--model", model))

    @pytest.mark.parametrize(
        ("ports", "told"),
        [(("80", "8088"), "http_port"), (("9000", "9000"), "both 9000"), (("x", "8088"), "--http-port")],
        ids=["low", "equal", "no-number"],
    )
    def test_ports_that_can_t_be_opened(
        self, described: Path, tmp_path: Path, ports: tuple[str, str], told: str
    ) -> None:
        options = ["--http-port", ports[0], "--rpc-port", ports[1]]
        assert told in refused(new(tmp_path / "app", "--model", described, *options))
        assert not (tmp_path / "app").exists()


ECHO = """
import json, sys
sys.stdout.write(json.dumps([sys.argv, sys.path[0], __name__, sys.modules["__main__"].__file__]))
sys.exit(3)
"""
CHOOSY = """
import os, sys
from pathlib import Path
from beside import NAME
from pipeline import Op, WebService

class EchoOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        return {**inputs, "arguments": " ".join(sys.argv[1:])}

class EchoService(WebService):
    def get_pipeline_response(self, read_op):
        return EchoOp(name="echo", input_ops=[read_op])

service = EchoService(name=NAME)
config = {"http_port": 1024, "rpc_port": 1025, "op": {"echo": {"batch_size": 7}}}
service.prepare_pipeline_config(yml_dict=config)
service.run_service()
"""


class TestRun:
    @pytest.fixture
    def choosy(self, tmp_path: Path) -> Path:
        """A service that imports a module beside it and has a module named as ours there."""
        folder = tmp_path / "app"
        folder.mkdir()
        (folder / "beside.py").write_text('NAME = "echo"\n', encoding="utf-8")
        (folder / "pipeline.py").write_text('raise ImportError("the app\'s own")\n', encoding="utf-8")
        (folder / "serve.py").write_text(CHOOSY, encoding="utf-8")
        return folder / "serve.py"

    def test_a_script_sees_what_python_would_show_it(self, tmp_path: Path) -> None:
        (tmp_path / "app").mkdir()
        script = tmp_path / "app" / "echo.py"
        script.write_text(ECHO, encoding="utf-8")
        done = paddlewheel("run", "app/echo.py", "--config", "x", "-v", cwd=tmp_path)
        assert done.returncode == 3, done.stderr
        assert json.loads(done.stdout) == [
            [str(script), "--config", "x", "-v"],
            str(script.parent),
            "__main__",
            str(script),
        ]

    def test_it_serves_a_script_of_another_folder_with_another_configuration(
        self, choosy: Path, tmp_path: Path
    ) -> None:
        arguments = ["run", "--config", "{config}", "app/serve.py", "--size", "2"]
        with ServiceProcess(MAIN, name="echo", arguments=arguments, folder=tmp_path) as running:
            assert running.predict({"0": "hello"}) == {"0": "hello", "arguments": "--size 2"}

    def test_it_prints_the_configuration_that_the_script_prepares(self, choosy: Path, tmp_path: Path) -> None:
        done = paddlewheel("run", "--print-config", choosy)
        assert done.returncode == 0, done.stderr
        printed = tmp_path / "printed.yml"
        printed.write_text(done.stdout, encoding="utf-8")
        config = load_config(printed)
        assert (config.http_port, config.op["echo"].batch_size) == (1024, 7)

    def test_it_prints_the_configuration_it_is_given_instead(self, choosy: Path, tmp_path: Path) -> None:
        other = tmp_path / "other.yml"
        other.write_text("http_port: 2048\n", encoding="utf-8")
        done = paddlewheel("run", "--config", other, "--print-config", choosy)
        assert done.returncode == 0, done.stderr
        assert "http_port: 2048" in done.stdout and "batch_size: 1\n" in done.stdout

    def test_mistakes_of_a_configuration_are_told(self, choosy: Path, tmp_path: Path) -> None:
        other = tmp_path / "other.yml"
        other.write_text("http_prot: 2048\n", encoding="utf-8")
        done = paddlewheel("run", "--config", other, choosy)
        assert done.returncode == 2
        assert "http_port" in done.stderr and "Traceback" not in done.stderr

    def test_what_can_t_be_run_is_told_in_one_sentence(self, choosy: Path, tmp_path: Path) -> None:
        idle = tmp_path / "idle.py"
        idle.write_text("x = 1\n", encoding="utf-8")
        assert "without calling run_service" in refused(paddlewheel("run", idle))
        assert "nowhere.py" in refused(paddlewheel("run", tmp_path / "nowhere.py"))
        assert "nowhere.yml" in refused(paddlewheel("run", "--config", "nowhere.yml", choosy))
        assert "SCRIPT" in refused(paddlewheel("run"))
        assert "COMMAND" in refused(paddlewheel())


class TestConfigReference:
    def test_the_document_is_what_the_command_prints(self) -> None:
        done = paddlewheel("config")
        assert done.returncode == 0, done.stderr
        assert (ROOT / "docs" / "config.md").read_text(encoding="utf-8") == done.stdout

    def test_it_names_every_key_by_its_name_in_the_file(self) -> None:
        printed = config_reference()
        for key in ("http_port", "model_config", "channel_recv_frist_arrive", "cache_dir", "text_chars"):
            assert f"| `{key}` |" in printed
        for section in ("dag.tracer", "op.<name>.local_service_conf", "op.<name>.padding.feeds.<name>"):
            assert f"## `{section}`" in printed
