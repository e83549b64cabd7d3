"""`paddlewheel new`: what it writes and refuses."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.config.config_file import load_config
from pipeline.launch.command_line import main
from pipeline.models.serving_model import ServingModel, Variable, write_serving_model
from tests.support.command_line import paddlewheel, refused
from tests.support.onnx_models import bare, onnx_file
from tests.support.service_process import ROOT

IDS = Variable("input_ids", "input_ids", "int64", (-1, -1))
IMAGE = Variable("image", "image", "float32", (-1, 3, -1, -1))


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


class TestWhatNewWrites:
    def test_two_files_and_the_body_of_an_example_that_is_too_long_for_a_command(
        self, described: Path, tmp_path: Path
    ) -> None:
        done = new(tmp_path / "app", "--model", described)
        assert done.returncode == 0, done.stderr
        written = ["config.yml", "example.json", "web_service.py"]
        assert sorted(path.name for path in (tmp_path / "app").iterdir()) == written
        example = json.loads((tmp_path / "app" / "example.json").read_text("utf-8"))
        assert np.shape(json.loads(example["value"][0])) == (1, 3, 32, 32)
        config = load_config(tmp_path / "app" / "config.yml")
        assert (config.http_port, config.rpc_port) == (18082, 8088)
        conf = config.op["app"].local_service_conf
        assert conf is not None and conf.model_dir == str(described)

    def test_of_a_model_with_versions_the_folder_of_all(self, described: Path, tmp_path: Path) -> None:
        shutil.copytree(described, tmp_path / "model" / "2")
        done = new(tmp_path / "app", "--model", tmp_path / "model")
        assert done.returncode == 0, done.stderr
        conf = load_config(tmp_path / "app" / "config.yml").op["app"].local_service_conf
        assert conf is not None and conf.model_dir == str(tmp_path / "model")
        assert "curl -s localhost:18082/app/prediction" in done.stdout

    def test_the_command_to_start_it_names_the_interpreter_where_no_environment_is_active(
        self, described: Path, tmp_path: Path
    ) -> None:
        asked = ("new", "app", "--model", described)
        done = paddlewheel(*asked, cwd=tmp_path, active=False)
        assert f"\n  {sys.executable} app/web_service.py\n" in done.stdout
        shutil.rmtree(tmp_path / "app")
        assert "\n  python3 app/web_service.py\n" in paddlewheel(*asked, cwd=tmp_path).stdout

    def test_it_imports_no_framework(self, classifier: ServingModel, tmp_path: Path) -> None:
        code = (
            "import sys; from pipeline.launch.command_line import main; main(sys.argv[1:]); "
            "sys.exit(bool({'paddle', 'onnxruntime', 'torch', 'PIL', 'tokenizers'} & set(sys.modules)))"
        )
        command = [
            sys.executable,
            "-c",
            code,
            "new",
            str(tmp_path / "app"),
            "--model",
            str(classifier.directory),
        ]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0

    def test_a_model_below_the_folder_is_named_relative_to_it(
        self, classifier: ServingModel, tmp_path: Path
    ) -> None:
        shutil.copytree(classifier.directory, tmp_path / "app" / "models" / "v1")
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

    def test_with_copy_a_folder_that_can_be_moved_to_another_machine(self, tmp_path: Path) -> None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "model.onnx").symlink_to(onnx_file("scaled"))  # as in caches of downloads
        done = new(tmp_path / "app", "--model", tmp_path / "model", "--copy")
        assert done.returncode == 0, done.stderr
        assert "model/. Start the service" in done.stdout
        shutil.rmtree(tmp_path / "model")
        moved = (tmp_path / "app").rename(tmp_path / "moved")
        config = moved / "config.yml"
        config.write_text(
            config.read_text("utf-8").replace("auto ", "1 ").replace("engine: 1", "engine: onnxruntime")
        )
        printed = paddlewheel("run", "--print-config", moved)
        assert printed.returncode == 0, printed.stderr
        assert f"model_config: {moved / 'model'}\n" in printed.stdout
        assert not any(path.is_symlink() for path in (moved / "model").iterdir())

    @pytest.mark.parametrize(
        ("onnx", "instances", "precision"),
        [
            (False, "a process each with its own copy of the model", "bf16 where the CPU has it"),
            (True, "threads that share one copy of the model", "without effect in ONNX Runtime on the CPU"),
        ],
        ids=["paddle", "onnx"],
    )
    def test_comments_that_match_the_engine(
        self, described: Path, tmp_path: Path, onnx: bool, instances: str, precision: str
    ) -> None:
        done = new(tmp_path / "app", "--model", bare(tmp_path, "scaled") if onnx else described)
        assert done.returncode == 0, done.stderr
        config = (tmp_path / "app" / "config.yml").read_text("utf-8")
        assert instances in config and precision in config


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
