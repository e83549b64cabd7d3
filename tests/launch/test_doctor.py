"""`paddlewheel doctor`: what it finds on this machine, and the remedies for what others lack."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.config_file import load_config
from pipeline.launch.doctor import Status
from pipeline.launch.doctor.checks import (
    check_config,
    check_cores,
    check_cpu,
    check_gpu,
    check_memory,
    check_originals,
    check_packages,
    check_port,
    check_python,
    check_tritonserver,
    cpu_flags,
    memory,
)
from pipeline.launch.doctor.prediction import check_predictions, try_prediction
from tests.support.free_ports import free_port
from tests.support.service_process import APPS, ROOT, ServiceProcess

GIB = 1 << 30
CPU_BUILD = {"version": "3.3.1", "cuda": "", "cards": 0, "tensorrt": "", "tensorrt_found": ""}
GPU_BUILD = {"version": "3.3.1", "cuda": "12.6", "cards": 1, "tensorrt": "10.5.0", "tensorrt_found": ""}


def doctor(folder: Path, *options: str, search_path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it in `folder`; modules in `search_path` are found before installed ones."""
    paths = [str(ROOT), *([str(search_path)] if search_path else [])]
    return subprocess.run(
        [sys.executable, "-m", "pipeline", "doctor", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    return {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}


def write_config(folder: Path, text: str) -> Path:
    path = folder / "config.yml"
    path.write_text(text, "utf-8")
    return path


def paddle_that(folder: Path, statement: str) -> Path:
    """A folder with a module `paddle` that does this when it is imported."""
    (folder / "paddle.py").write_text(f"import os\n{statement}\n", "utf-8")
    return folder


def without(folder: Path, module: str) -> Path:
    """A folder in which neither this module nor Paddle can be imported."""
    (folder / f"{module}.py").write_text("raise ImportError('half of it is missing')\n", "utf-8")
    return paddle_that(folder, "raise ImportError('not tried here: it takes seconds')")


def with_device(device_type: int, devices: str = "") -> Any:
    conf = {"model_config": "model", "device_type": device_type, "devices": devices}
    return load_config({"http_port": 18082, "op": {"bert": {"local_service_conf": conf}}})


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A report of this machine beside a configuration whose ports are free."""
    folder = tmp_path_factory.mktemp("service")
    write_config(folder, f"http_port: {free_port()}\nrpc_port: {free_port()}\n")
    return doctor(folder, "--json")


class TestWholeReport:
    def test_a_machine_that_runs_the_tests_can_serve(self, healthy: subprocess.CompletedProcess[str]) -> None:
        report = json.loads(healthy.stdout)
        assert [finding for finding in report["findings"] if finding["status"] == "miss"] == []
        assert (report["ok"], healthy.returncode) == (True, 0)

    def test_a_real_prediction_equals_the_layers_own_answer(
        self, healthy: subprocess.CompletedProcess[str]
    ) -> None:
        prediction = findings(healthy)["Prediction on the CPU"]
        assert prediction["status"] == "ok"
        assert "equal to the layers' own answer" in prediction["found"]

    def test_it_tells_of_every_part(self, healthy: subprocess.CompletedProcess[str]) -> None:
        expected = {
            "Python",
            "Packages",
            "Imports",
            "NumPy",
            "Paddle Serving's packages",
            "ONNX Runtime",
            "CPU",
            "Cores",
            "Memory",
        }
        expected |= {"Paddle", "NVIDIA driver", "CUDA", "TensorRT", "Configuration"}
        assert expected <= findings(healthy).keys()
        assert len([check for check in findings(healthy) if check.startswith("Port ")]) == 2

    def test_a_paddle_that_cant_be_imported_is_a_miss_with_its_reason(self, tmp_path: Path) -> None:
        broken = paddle_that(tmp_path, "raise ImportError('libgomp.so.1: cannot open shared object file')")
        done = doctor(tmp_path, "--json", search_path=broken)
        paddle = findings(done)["Paddle"]
        assert (done.returncode, json.loads(done.stdout)["ok"], paddle["status"]) == (1, False, "miss")
        assert "libgomp.so.1" in paddle["found"]
        assert "make clean setup" in paddle["remedy"]
        assert findings(done)["Prediction"]["status"] == "miss"

    def test_a_paddle_that_kills_its_process_is_a_finding_and_not_the_end(self, tmp_path: Path) -> None:
        done = doctor(tmp_path, "--json", search_path=paddle_that(tmp_path, "os.kill(os.getpid(), 4)"))
        assert done.returncode == 1
        assert "died of SIGILL" in findings(done)["Paddle"]["found"]

    def test_the_table_ends_with_what_is_missing(self, tmp_path: Path) -> None:
        done = doctor(tmp_path, search_path=paddle_that(tmp_path, "raise ImportError('no libgomp')"))
        assert done.returncode == 1
        assert done.stdout.rstrip().endswith("This machine can't serve yet: Paddle, Prediction.")
        assert "Remedy" in done.stdout
        assert done.stderr == ""

    @pytest.mark.parametrize("module", ["pydantic", "numpy", "uvloop", "tokenizers"])
    def test_a_package_that_does_not_load_is_told(self, tmp_path: Path, module: str) -> None:
        write_config(tmp_path, f"http_port: {free_port()}\n")
        done = doctor(tmp_path, "--json", search_path=without(tmp_path, module))
        imports = findings(done)["Imports"]
        assert (done.returncode, imports["status"]) == (1, "miss")
        assert f"{module}: ImportError: half of it is missing" in imports["found"].split("; ")
        assert "make clean setup" in imports["remedy"]
        configuration = findings(done)["Configuration"]
        assert (configuration["status"] == "miss") is (module == "pydantic")

    def test_without_rich_the_report_is_plain_lines(self, tmp_path: Path) -> None:
        done = doctor(tmp_path, search_path=without(tmp_path, "rich"))
        assert (done.returncode, done.stderr) == (1, "")
        assert "\nmiss Imports: rich: ImportError: half of it is missing -> Install" in done.stdout
        assert done.stdout.endswith("This machine can't serve yet: Imports, Paddle, Prediction.\n")

    def test_the_doctor_itself_does_not_import_paddle(self) -> None:
        code = "import sys, pipeline.launch.doctor.report; sys.exit('paddle' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


class TestSoftware:
    @pytest.mark.parametrize("version", [(3, 10), (3, 14), (2, 7)])
    def test_another_python_is_a_miss(self, version: tuple[int, int]) -> None:
        finding = check_python(version, "Linux x86_64")
        assert finding.status is Status.MISS
        assert "3.11-3.13" in finding.remedy

    def test_another_system_is_a_miss(self) -> None:
        assert check_python((3, 12), "Darwin arm64").status is Status.MISS
        assert check_python((3, 12), "Linux x86_64").status is Status.OK

    @pytest.mark.parametrize(
        ("installed", "status", "told"),
        [
            ({"numpy": "2.4.6", "paddlepaddle": "3.3.1", "idna": "3"}, Status.OK, "3 of the 3"),
            ({"numpy": "2.4.6", "paddlepaddle-gpu": "3.3.1", "idna": "3"}, Status.OK, "3 of the 3"),
            ({"numpy": "1.26.4", "paddlepaddle": "3.3.1", "idna": "3"}, Status.NOTE, "numpy 1.26.4"),
            ({"numpy": "2.4.6", "idna": "3"}, Status.MISS, "paddlepaddle"),
            ({"numpy": "2.4.6", "paddlepaddle": "3.3.1"}, Status.OK, "2 of the 3"),
        ],
    )
    def test_packages_are_held_against_the_lock(
        self, installed: Mapping[str, str], status: Status, told: str
    ) -> None:
        locked = {"numpy": "2.4.6", "paddlepaddle": "3.3.1", "idna": "3"}
        finding = check_packages(locked, {"numpy", "paddlepaddle"}, installed)
        assert finding.status is status
        assert told in finding.result

    @pytest.mark.parametrize(
        "name", ["paddle-serving-server", "paddle-serving-server-gpu", "paddle-serving-app"]
    )
    def test_paddle_servings_own_packages_are_refused(self, name: str) -> None:
        finding = check_originals([name, "numpy"])
        assert finding.status is Status.MISS
        assert finding.remedy.endswith(f"pip uninstall {name}")

    def test_the_compatibility_distribution_is_welcome(self) -> None:
        assert check_originals(["paddlewheel-compat", "paddlewheel"]).status is Status.OK


class TestMachine:
    def test_a_cpu_without_avx_is_a_miss(self) -> None:
        assert check_cpu({"sse4_2"}).status is Status.MISS

    @pytest.mark.parametrize(
        ("flags", "told"),
        [
            ({"avx", "avx2"}, "fp32 only"),
            ({"avx", "avx2", "avx512f", "avx512_bf16"}, "bf16 is possible"),
            ({"avx", "amx_bf16"}, "bf16 is possible"),
        ],
    )
    def test_features_say_which_precision_they_allow(self, flags: set[str], told: str) -> None:
        finding = check_cpu(flags)
        assert finding.status is Status.OK
        assert told in finding.result

    def test_fewer_cores_by_the_control_group_are_told(self) -> None:
        finding = check_cores(16, 2.5)
        assert (finding.status, "2.5" in finding.result) == (Status.NOTE, True)
        assert "about 2" in finding.remedy
        assert check_cores(4, None).status is Status.OK

    def test_little_memory_is_told_wherever_the_limit_is(self) -> None:
        assert check_memory(16 * GIB, 32 * GIB, None).status is Status.OK
        assert check_memory(GIB, 32 * GIB, None).status is Status.NOTE
        limited = check_memory(16 * GIB, 32 * GIB, GIB)
        assert limited.status is Status.NOTE
        assert "limited to 1.0 GiB" in limited.result

    def test_this_machine_can_be_read(self) -> None:
        available, total, _ = memory()
        assert 0 < available <= total
        assert cpu_flags()


class TestGpu:
    def test_what_the_configuration_does_not_ask_for_is_no_miss(self) -> None:
        for config in (None, with_device(0), with_device(-1)):
            assert all(finding.status is not Status.MISS for finding in check_gpu(CPU_BUILD, config))

    @pytest.mark.parametrize("config", [with_device(1), with_device(-1, "0")])
    def test_a_gpu_that_is_asked_for_needs_a_gpu_build(self, config: Any) -> None:
        told = {finding.check: finding for finding in check_gpu(CPU_BUILD, config)}
        assert told["CUDA"].status is Status.MISS
        assert "Dockerfile.gpu" in told["CUDA"].remedy
        assert told["TensorRT"].status is Status.NOTE

    def test_tensorrt_that_is_asked_for_needs_a_build_with_it(self) -> None:
        told = {finding.check: finding for finding in check_gpu(CPU_BUILD, with_device(2))}
        assert told["TensorRT"].status is Status.MISS

    def test_a_gpu_build_that_sees_cards_is_told_with_its_versions(self) -> None:
        build = {**GPU_BUILD, "tensorrt_found": "10.5.0"}
        told = {finding.check: finding for finding in check_gpu(build, with_device(2))}
        assert (told["CUDA"].status, told["TensorRT"].status) == (Status.OK, Status.OK)
        assert "12.6" in told["CUDA"].result

    def test_a_gpu_build_without_a_card_names_the_driver(self) -> None:
        told = {f.check: f for f in check_gpu({**GPU_BUILD, "cards": 0}, with_device(1))}
        assert told["CUDA"].status is Status.MISS
        assert "driver" in told["CUDA"].remedy


class TestConfiguration:
    def test_a_folder_without_one_is_no_miss(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        config, (finding,) = check_config(None)
        assert (config, finding.status) == (None, Status.NOTE)

    def test_one_that_is_named_must_be_there(self, tmp_path: Path) -> None:
        _, (finding,) = check_config(tmp_path / "production.yml")
        assert finding.status is Status.MISS
        assert "production.yml can't be read" in finding.result

    def test_its_mistakes_are_told(self, tmp_path: Path) -> None:
        _, (finding,) = check_config(write_config(tmp_path, "http_port: 18082\nworker_nmu: 2\n"))
        assert finding.status is Status.MISS
        assert "did you mean worker_num?" in finding.result

    def test_a_used_port_names_its_process(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            finding = check_port("http_port", other.getsockname()[1])
        assert finding.status is Status.MISS
        assert f"process {os.getpid()}" in finding.result
        assert "another http_port" in finding.remedy

    def test_a_free_port_is_free(self) -> None:
        assert check_port("rpc_port", free_port()).status is Status.OK

    def test_a_service_of_ours_on_the_port_is_no_miss(self) -> None:
        with ServiceProcess(APPS / "echo.py") as service:
            told = [check_port("http_port", service.http_port), check_port("rpc_port", service.rpc_port)]
        assert [finding.status for finding in told] == [Status.NOTE, Status.NOTE]
        assert f"process {service.process.pid}" in told[0].result


def test_a_home_that_can_t_be_written_is_no_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/proc/no-home")
    assert [finding.status for finding in check_predictions(try_prediction())] == [Status.OK]


def test_the_first_tritonserver_on_the_path_is_told_apart(tmp_path: Path) -> None:
    texts = {"ours": "#!/bin/python\nfrom pipeline.__main__ import tritonserver\n", "other": "\x7fELF"}
    told = []
    for name, text in texts.items():
        (tmp_path / name).write_text(text, "utf-8")
        told.append(check_tritonserver(str(tmp_path / name)))
    told.append(check_tritonserver(None))
    assert [finding.status for finding in told] == [Status.OK, Status.NOTE, Status.NOTE]
    assert [finding.result.rpartition(", ")[2] for finding in told] == [
        "of this package",
        "of another package",
        "not on the PATH",
    ]
