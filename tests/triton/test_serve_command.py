"""`paddlewheel serve`: its flags, and what it says of a repository that can't be served."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import grpc
import pytest

from pipeline.errors import ConfigError
from pipeline.models.serving_model import load_serving_model
from tests.support.command_line import paddlewheel
from tests.support.onnx_models import onnx_file
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import PATIENCE_S, ROOT, wait_until
from tests.support.triton_repository import write_model

TLS = ROOT / "tests" / "fixtures" / "tls"
TENSORS = """
backend: "identity"
input { name: "I" data_type: TYPE_FP32 dims: [ 2 ] }
output [ { name: "O" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
PYTHON_TENSORS = TENSORS.replace('"identity"', '"python"')
WITHOUT_EFFECT = """
response_cache { enable: true }
instance_group { rate_limiter { resources { name: "R" count: 9 } priority: 2 } }
"""
REFUSES = "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('{}')\n"


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--model-repositry=x", "did you mean --model-repository?"),
        ("--http-prt=1", "did you mean --http-port?"),
        ("--strict-raediness=true", "did you mean --strict-readiness?"),
        ("--allow-http=perhaps", "'perhaps' is neither true nor false"),
        ("--model-control-mode=sometimes", "invalid choice: 'sometimes'"),
        ("--backend-config=onnxruntime", "write BACKEND,NAME=VALUE"),
        ("--http-port=8001", "--http-port and --grpc-port are both 8001"),
        ("--http-header-forward-pattern=(", "'(' is no regular expression"),
        ("--load-model=bert", "needs --model-control-mode=explicit"),
        ("--metrics-interval-ms=often", "argument --metrics-interval-ms: 'often' is no number"),
        ("--http-port=99999", "argument --http-port: '99999' is no port"),
        ("--rate-limit-resource=R", "'R' is not of the form NAME:COUNT[:DEVICE]"),
        ("--model-load-gpu-limit=0:0.9", "--model-load-gpu-limit is refused: "),
        ("--trace-=1", "ambiguous option: --trace-"),
        ("--log-file=/nowhere/log", "can't be written"),
        ("--cache-config=disk,size=1", "there is no such cache, only local"),
        ("--http-max-input-size=0", "'0' is no number from 1 on"),
        ("--grpc-use-ssl", "needs --grpc-server-cert and --grpc-server-key"),
        ("--model-store=gs://bucket/models", "is in a bucket, which is not read here: copy it to a folder"),
        ("--model-store=s3://Bucket", "is not of the form s3://[HOST:PORT/]BUCKET/FOLDER"),
    ],
)
def test_a_flag_that_triton_does_not_know_is_refused_with_the_nearest(
    flag: str, told: str, tmp_path: Path
) -> None:
    answer = paddlewheel("serve", f"--model-repository={tmp_path}", flag)
    assert (answer.returncode, told in answer.stderr) == (2, True), answer.stderr


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "holds no model that can be served"),
        ({"bert/config.pbtxt": 'platform: "tensorrt_plan"'}, "serve the ONNX model"),
        ({"bert/1/model.plan": ""}, "serve the ONNX model"),
        ({"bert/config.pbtxt": f'{TENSORS} batch_input {{ target_name: "x" }}'}, "expects 1 source input"),
        ({"bert/config.pbtxt": 'backend: "python"\ninput [ { nam: "x" } ]'}, "line 2: unknown field 'nam'"),
        ({"bert/config.pbtxt": 'name: "a"\nname: "b"'}, "line 2: "),
        ({"bert/config.pbtxt": 'name: "other"', "bert/1/model.py": ""}, "name is 'other', and the folder's"),
        ({"bert/config.pbtxt": f'{TENSORS} max_batch_size: -1', "bert/1/x": ""}, "non-negative"),
        ({"be rt/config.pbtxt": TENSORS, "be rt/1/x": ""}, "'be rt' can't be the name of a model"),
    ],
)  # fmt: skip
def test_a_repository_without_a_model_to_serve_says_why(
    files: dict[str, str], told: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, "utf-8")
    answer = paddlewheel("serve", f"--model-repository={tmp_path}")
    assert (answer.returncode, told in answer.stderr) == (2, True), answer.stderr


def test_the_start_tells_models_and_flags_without_effect(tmp_path: Path) -> None:
    write_model(tmp_path, "same", TENSORS + WITHOUT_EFFECT)
    write_model(tmp_path, "odd", f"{TENSORS} version_policy {{ specific {{ versions: 7 }} }}")
    flags = ["--http-thread-count=8", "--log-verbose=1", "--allow-metrics=false", "--strict-readiness=false"]
    flags += ["--id=ours", f"--http-max-input-size={1 << 32}"]  # more than gRPC can be told
    with RepositoryProcess(tmp_path, arguments=flags) as service:
        service.wait_for_log("is ready: http_port")
        assert "--http-thread-count has no effect: one thread " in service.log
        lines = [line.split() for line in service.log.splitlines()]
        assert ["same", "1", "READY"] in lines
        assert any(line[:2] == ["odd", "UNAVAILABLE:"] for line in lines)
        assert service.http("/v2/health/ready").status == 200  # for readiness is not strict
        assert service.http("/v2").json["name"] == "ours"


def test_ports_may_be_left_out_or_opened_at_one_address_and_the_log_be_a_file(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "same", TENSORS)
    flags = [
        "--allow-grpc=false", "--http-address=127.0.0.1", "--backend-config=python,shm-default-byte-size=1",
        f"--log-file={tmp_path / 'log'}", "--model-load-thread-count=1",
    ]  # fmt: skip
    with RepositoryProcess(tmp_path / "models", arguments=flags) as service:
        file = tmp_path / "log"
        wait_until(lambda: "is ready: http_port" in file.read_text("utf-8"), "the log tells of the ports")
        log = file.read_text("utf-8")
        assert "rpc_port" not in log
        assert "--backend-config=python,shm-default-byte-size has no effect" in log
        http_port = int(service.url.rpartition(":")[2])
        listening = [
            line.split()[1]
            for name in ("tcp", "tcp6")
            for line in _sockets_of(name)
            if line.split()[3] == "0A"
        ]
        assert f"0100007F:{http_port:04X}" in listening
        assert not any(one.endswith(f":{http_port + 1:04X}") for one in listening)


def _sockets_of(kind: str) -> list[str]:
    return Path(f"/proc/net/{kind}").read_text("ascii").splitlines()[1:]


def test_grpc_alone_has_tls_where_its_flags_say_so(tmp_path: Path) -> None:
    write_model(tmp_path, "same", TENSORS)
    flags = [
        "--grpc-use-ssl=true", f"--grpc-server-cert={TLS / 'server.pem'}",
        f"--grpc-server-key={TLS / 'server.key'}",
    ]  # fmt: skip
    with RepositoryProcess(tmp_path, arguments=flags) as service:
        assert service.http("/v2/models/same/ready").status == 200
        trusted = grpc.ssl_channel_credentials((TLS / "ca.pem").read_bytes())
        with grpc.secure_channel(f"localhost:{service.rpc_address.rpartition(':')[2]}", trusted) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert live(b"", timeout=PATIENCE_S) == b"\x08\x01"


def test_what_is_not_answered_in_the_time_after_sigterm_is_left(tmp_path: Path) -> None:
    waits = """
    class TritonPythonModel:
        def execute(self, requests):
            import time
            print("execute has begun", flush=True)
            time.sleep(3600)
    """
    write_model(tmp_path, "waits", TENSORS.replace('"identity"', '"python"'), waits)
    with RepositoryProcess(tmp_path, arguments=["--exit-timeout-secs=1"]) as service:
        row = {"name": "I", "datatype": "FP32", "shape": [2], "data": [1, 2]}
        connection = service.connection()
        connection.request("POST", "/v2/models/waits/infer", json.dumps({"inputs": [row]}))
        service.wait_for_log("execute has begun")
        service.terminate()
        service.exit_code()
        assert "1 requests were not answered in drain_timeout" in service.log
        connection.close()


def test_strangers_load_nothing_where_keys_are_asked_for(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "same", TENSORS)
    (tmp_path / "keys.txt").write_text("operator:open-sesame-0123456789\n", "utf-8")
    (tmp_path / "keys.txt").chmod(0o600)
    flags = ["--model-control-mode=explicit", f"--api-keys={tmp_path / 'keys.txt'}"]
    with RepositoryProcess(tmp_path / "models", arguments=flags) as service:
        path = "/v2/repository/models/same/load"
        assert service.http(path, b"").status == 401
        assert service.http("/v2/models/same/infer", b"{}").status == 401
        known = {"x-api-key": "open-sesame-0123456789"}
        assert service.http(path, b"", headers=known).status == 200
        assert service.http("/v2/models/same/ready", headers=known).status == 200


def test_models_that_leave_out_their_batch_take_the_default_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "scaled" / "1").mkdir(parents=True)
    shutil.copyfile(onnx_file("scaled"), tmp_path / "scaled" / "1" / "model.onnx")
    flags = ["--backend-config=onnxruntime,default-max-batch-size=16"]
    with RepositoryProcess(tmp_path, arguments=flags) as service:
        assert service.http("/v2/models/scaled/config").json["max_batch_size"] == 16


def test_the_largest_request_is_as_the_flag_says_over_both_protocols(tmp_path: Path) -> None:
    write_model(tmp_path, "same", TENSORS)
    with RepositoryProcess(tmp_path, arguments=["--http-max-input-size=1000"]) as service:
        answer = service.http("/v2/models/same/infer", b"x" * 1001)
        assert (answer.status, "--http-max-input-size" in answer.json["error"]) == (413, True), answer
        with pytest.raises(grpc.RpcError, match="larger than max"):
            service.raw_rpc(b"x" * 1001, method="/inference.GRPCInferenceService/ModelInfer")


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, "same", TENSORS)
    answer = paddlewheel("serve", f"--model-repository={tmp_path}", "--http-address=nowhere")
    assert (answer.returncode, "must be an IP address" in answer.stderr) == (2, True), answer.stderr


def test_strict_devices_refuses_what_asks_for_a_gpu(tmp_path: Path) -> None:
    write_model(tmp_path, "graphic", f"{TENSORS} instance_group {{ kind: KIND_GPU }}")
    answer = paddlewheel("serve", f"--model-repository={tmp_path}", "--strict-devices")
    assert (answer.returncode, "asks for KIND_GPU, and there is no GPU here" in answer.stderr) == (2, True)


def test_poll_serves_what_comes_changes_and_goes(tmp_path: Path) -> None:
    write_model(tmp_path, "first", TENSORS)
    with RepositoryProcess(
        tmp_path, arguments=["--model-control-mode=poll", "--repository-poll-secs=1"]
    ) as service:
        write_model(tmp_path, "second", TENSORS)
        service.wait_for_log("Model second is loaded")
        assert service.http("/v2/models/second/ready").status == 200
        (tmp_path / "first" / "config.pbtxt").write_text(TENSORS.replace("dims: [ 2 ]", "dims: [ 3 ]"))
        service.wait_for_log("Model first is loaded")
        assert service.http("/v2/models/first").json["inputs"][0]["shape"] == [3]
        (tmp_path / "first" / "config.pbtxt").write_text("name: [")
        service.wait_for_log("failed to load 'first'")
        assert service.http("/v2/models/first").json["inputs"][0]["shape"] == [3]
        (tmp_path / "first").rename(tmp_path.parent / f"{tmp_path.name}-gone")
        service.wait_for_log("Unloaded: first:1")
        assert service.http("/v2/models/first/ready").status == 400
        assert service.http("/v2/repository/models/second/unload", b"").status == 503


def test_polling_unloads_a_model_that_appears_in_a_second_repository(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for name in ("moved", "steady"):
        write_model(first, name, TENSORS)
    second.mkdir()
    with RepositoryProcess(
        first, second, arguments=["--model-control-mode=poll", "--repository-poll-secs=1"]
    ) as service:
        write_model(tmp_path / "elsewhere", "moved", TENSORS).rename(second / "moved")
        service.wait_for_log("Unloaded: moved:1")
        assert service.http("/v2/models/moved/ready").status == 400
        assert service.http("/v2/models/steady/ready").status == 200
        (first / "moved").rename(tmp_path / "gone")
        service.wait_for_log("Model moved is loaded")
        assert service.http("/v2/models/moved/ready").status == 200


def test_polling_tries_a_model_that_does_not_start_once_for_each_change_of_it(tmp_path: Path) -> None:
    repository, elsewhere = tmp_path / "models", tmp_path / "elsewhere"
    write_model(repository, "steady", TENSORS)
    elsewhere.mkdir()

    def come(name: str, config: str, code: str = "") -> None:
        """At once, so that no look at the disk finds half of it."""
        write_model(elsewhere, name, config, code).rename(repository / name)

    def change_code(text: str) -> None:
        (elsewhere / "model.py").write_text(text)
        (elsewhere / "model.py").rename(repository / "broken" / "1" / "model.py")

    with RepositoryProcess(
        repository, arguments=["--model-control-mode=poll", "--repository-poll-secs=1"]
    ) as service:
        come("broken", PYTHON_TENSORS, REFUSES.format("no licence"))
        service.wait_for_log("failed to load 'broken'")
        for name in ("second", "third"):  # one after the other: by then the disk was looked at twice more
            come(name, TENSORS)
            service.wait_for_log(f"Model {name} is loaded")
        assert service.log.count("failed to load 'broken'") == 1
        change_code(REFUSES.format("no memory"))
        service.wait_for_log("failed to load 'broken'", times=2)
        (repository / "broken").rename(elsewhere / "broken")
        come("fourth", TENSORS)
        service.wait_for_log("Model fourth is loaded")
        (elsewhere / "broken").rename(repository / "broken")
        service.wait_for_log("failed to load 'broken'", times=3)
        change_code("class TritonPythonModel:\n    def execute(self, requests):\n        return []\n")
        service.wait_for_log("Model broken is loaded")
        assert service.http("/v2/models/broken/ready").status == 200
        told = [line for line in service.log.splitlines() if "failed to load 'broken'" in line]
        assert [text for line in told for text in ("licence", "memory") if text in line] == [
            "licence",
            "memory",
            "memory",
        ]


def test_explain_tells_models_and_what_is_wrong(tmp_path: Path) -> None:
    write_model(tmp_path, "same", TENSORS)
    write_model(
        tmp_path,
        "twice",
        """
        platform: "ensemble"
        input { name: "A" data_type: TYPE_FP32 dims: 2 }
        output { name: "B" data_type: TYPE_FP32 dims: 2 }
        ensemble_scheduling { step [
          { model_name: "same" input_map { key: "I" value: "A" } output_map { key: "O" value: "m" } },
          { model_name: "same" input_map { key: "I" value: "m" } output_map { key: "O" value: "B" } } ] }
        """,
    )
    drawing = tmp_path.parent / f"{tmp_path.name}.svg"
    sound = paddlewheel("explain", tmp_path, "--svg", drawing)
    assert sound.returncode == 0, sound.stderr
    texts = [one.text for one in ElementTree.parse(drawing).iter("{http://www.w3.org/2000/svg}text")]
    assert {"twice  version 1", "step 2: same version 1", "O as I", "A FP32 [2]"} <= {*texts}
    assert "step 2: same version 1 takes step 1.O as I" in sound.stdout
    assert "takes A FP32 [2]" in sound.stdout
    write_model(
        tmp_path, "looping", (tmp_path / "twice" / "config.pbtxt").read_text().replace("same", "looping")
    )
    flawed = paddlewheel("explain", tmp_path)
    assert flawed.returncode == 1
    assert "circular dependency between ensembles: looping -> looping" in flawed.stdout
    assert "-> an ensemble is made of others than itself" in flawed.stdout


def test_a_model_of_two_repositories_is_not_served_and_the_others_are(tmp_path: Path) -> None:
    for repository, name in (("one", "same"), ("two", "same"), ("two", "other")):
        write_model(tmp_path / repository, name, TENSORS)
    told = paddlewheel("explain", tmp_path / "one", tmp_path / "two")
    assert told.returncode == 1
    assert "other version 1: identity" in told.stdout
    both = f"{tmp_path / 'one' / 'same'} and {tmp_path / 'two' / 'same'}"
    assert f"same: model appears in two or more repositories: {both}" in told.stdout


def test_the_index_names_a_model_of_two_repositories(tmp_path: Path) -> None:
    for repository, name in (("one", "same"), ("two", "same"), ("two", "other")):
        write_model(tmp_path / repository, name, TENSORS)
    arguments = ["--model-control-mode=explicit", "--load-model=other"]
    with RepositoryProcess(tmp_path / "one", tmp_path / "two", arguments=arguments) as service:
        index = {row["name"]: row for row in service.http("/v2/repository/index", b"").json}
        assert index["other"]["state"] == "READY"
        duplicate = {"state": "UNAVAILABLE", "reason": "model appears in two or more repositories"}
        assert index["same"] == {"name": "same", **duplicate}
        load = service.http("/v2/repository/models/same/load", b"")
        assert "failed to load 'same', failed to poll from model repository" in load.json["error"]
        (tmp_path / "one" / "same").rename(tmp_path / "same")
        assert service.http("/v2/repository/models/same/load", b"").status == 200
        assert service.http("/v2/models/same/ready").status == 200


def test_a_service_that_is_given_a_repository_names_the_command_that_serves_it(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "same", TENSORS)
    for given in (tmp_path, folder):
        with pytest.raises(ConfigError, match=f"paddlewheel serve --model-repository {tmp_path}"):
            load_serving_model(given)
