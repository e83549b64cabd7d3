"""`paddlewheel run` and `paddlewheel config`: what they start, print and refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pipeline.config.config_file import load_config
from pipeline.config.reference import config_reference
from pipeline.config.reference_zh import CHINESE
from pipeline.models.description import SECTIONS
from tests.support.command_line import paddlewheel, refused
from tests.support.service_process import ROOT, ServiceProcess

MAIN = ROOT / "pipeline" / "__main__.py"
ECHO = """
import json, sys
sys.stdout.write(json.dumps([sys.argv, sys.path[0], __name__, sys.modules["__main__"].__file__]))
sys.exit(3)
"""
CHOOSY = """
import os, sys
from pathlib import Path
from beside import NAME
from client import MARK
from pipeline import Op, WebService

class EchoOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        return {**inputs, "arguments": MARK.join(sys.argv[1:])}

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
        """A service that imports modules beside it, and has modules named as ours there."""
        folder = tmp_path / "app"
        folder.mkdir()
        (folder / "beside.py").write_text('NAME = "echo"\n', encoding="utf-8")
        (folder / "client.py").write_text('MARK = " "\n', encoding="utf-8")
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

    def test_a_folder_stands_for_its_web_service_which_runs_there(self, tmp_path: Path) -> None:
        (tmp_path / "app").mkdir()
        echo = ECHO.replace("sys.path[0]", "os.getcwd()").replace("import json", "import json, os")
        (tmp_path / "app" / "web_service.py").write_text(echo, encoding="utf-8")
        done = paddlewheel("run", "app", "-v", cwd=tmp_path)
        script = tmp_path / "app" / "web_service.py"
        assert (done.returncode, json.loads(done.stdout)) == (
            3,
            [[str(script), "-v"], str(script.parent), "__main__", str(script)],
        )

    def test_with_json_the_lines_before_the_start_are_json_too(self, choosy: Path, tmp_path: Path) -> None:
        config = tmp_path / "other.yml"
        config.write_text(
            "http_port: 2048\nport: 1\nlogging: {format: json}\n"
            "op: {echo: {local_service_conf: {model_config: nowhere}}}\n",
            encoding="utf-8",
        )
        done = paddlewheel("run", "--config", config, choosy)
        lines = [json.loads(line) for line in done.stderr.splitlines()]
        assert (done.returncode, done.stdout) == (2, "")
        assert [(line["level"], line["service"], line["process"]) for line in lines] == [
            ("WARNING", "echo", "script"),
            ("ERROR", "echo", "script"),
        ]
        assert "port: unknown key" in lines[0]["message"] and "nowhere" in lines[1]["message"]

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
    @pytest.mark.parametrize(
        ("arguments", "document"),
        [((), "config.md"), (("--language", "zh"), "config_zh.md")],
        ids=["English", "Chinese"],
    )
    def test_the_document_is_what_the_command_prints(self, arguments: tuple[str, ...], document: str) -> None:
        done = paddlewheel("config", *arguments)
        assert done.returncode == 0, done.stderr
        assert (ROOT / "docs" / document).read_text(encoding="utf-8") == done.stdout

    def test_each_key_and_no_other_has_a_chinese_meaning(self) -> None:
        assert CHINESE.meanings is not None
        translated = {section: set(meanings) for section, meanings in CHINESE.meanings.items()}
        assert translated == keys_by_section(config_reference(serving_sections=SECTIONS))
        assert all(meaning for meanings in CHINESE.meanings.values() for meaning in meanings.values())

    def test_it_names_every_key_by_its_name_in_the_file(self) -> None:
        printed = config_reference(serving_sections=SECTIONS)
        for key in ("http_port", "model_config", "channel_recv_frist_arrive", "cache_dir", "text_chars"):
            assert f"| `{key}` |" in printed
        for section in ("dag.tracer", "op.<name>.local_service_conf", "op.<name>.padding.feeds.<name>"):
            assert f"## `{section}`" in printed


def keys_by_section(document: str) -> dict[str, set[str]]:
    """The keys of each table, by the heading above it; "" for the top level."""
    tables = re.split(r"^## ", document, flags=re.M)[1:]
    return {
        "".join(re.findall(r"^`(.+)`", table)): set(re.findall(r"^\| `(\w+)`", table, re.M))
        for table in tables
    }
