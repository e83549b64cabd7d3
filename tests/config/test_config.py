"""config.yml: what is read, what is refused and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.config_file import ServiceConfig, check_service_name, dump_config, load_config
from pipeline.errors import ConfigError

ORIGINAL_STYLE = """
rpc_port: 18083
http_port: 18082
worker_num: "1"
build_dag_each_worker: False
dag:
  is_thread_op: "True"
  retry: 1
  tracer:
op:
  bert:
    concurrency: 2
    timeout: -1
    batch_size: "4"
    auto_batching_timeout: -1
    local_service_conf:
      client_type: local_predictor
      model_config: bert_model
      device_type: 0
      devices: 0
      fetch_list: "logits"
      concurrency: 7
      mkldnn_op_list:
  join:
"""


def mistakes(config: dict[str, Any], **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config({"http_port": 18082, **config}, **options)
    return caught.value.message.removeprefix("configuration: ").split("\nconfiguration: ")


def test_the_spellings_of_original_files_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    path.write_text(ORIGINAL_STYLE)
    config = load_config(path)
    bert = config.op["bert"]
    assert (config.http_port, config.rpc_port, config.worker_num) == (18082, 18083, 1)
    assert config.dag.is_thread_op is True
    assert config.dag.tracer.interval_s == -1
    assert (bert.concurrency, bert.batch_size, bert.auto_batching_timeout) == (2, 4, 0)
    assert bert.local_service_conf is not None
    assert bert.local_service_conf.model_dir == "bert_model"
    assert bert.local_service_conf.devices == "0"
    assert bert.local_service_conf.fetch_list == ["logits"]
    assert bert.local_service_conf.mkldnn_op_list is None
    assert config.op["join"].local_service_conf is None


@pytest.mark.parametrize("given", [[0, 1], "0, 1", "0,1"])
def test_cards_may_be_listed_in_any_way(given: Any) -> None:
    config = load_config({"http_port": 18082, "op": {"a": {"local_service_conf": {"devices": given}}}})
    conf = config.op["a"].local_service_conf
    assert conf is not None
    assert conf.devices == "0,1"


@pytest.mark.parametrize("given", ["auto", "AUTO"])
def test_auto_may_be_written_in_any_case(given: str) -> None:
    conf = {"engine": given, "precision": given}
    config = load_config({"http_port": 18082, "op": {"a": {"batch_size": given, "local_service_conf": conf}}})
    read = config.op["a"].local_service_conf
    assert read is not None
    assert (read.engine, read.precision, config.op["a"].batch_size) == ("auto", "auto", -1)


def test_rpc_port_follows_http_port() -> None:
    assert load_config({"http_port": 18082}).rpc_port == 18083
    alone = load_config({"rpc_port": 18082})
    assert (alone.http_port, alone.rpc_port) == (None, 18082)


def test_all_mistakes_are_told_at_once_each_with_its_path_and_remedy() -> None:
    assert mistakes(
        {
            "dag": {"retry": 0, "http_errors": "http", "is_thread_op": "maybe"},
            "op": {
                "bert": {
                    "concurency": 2,
                    "padding": {"feeds": {"ids": {"axis": 0}}},
                    "local_service_conf": {"precision": "fp31", "model_dir": "m"},
                }
            },
            "limits": {"zzzzzz": 1},
        }
    ) == [
        "dag.is_thread_op: 'maybe' given; expected true or false",
        "dag.retry: 0 given; it must be greater than or equal to 1",
        "dag.http_errors: 'http' given; allowed: 'original' or 'status'",
        "op.bert.padding.feeds.ids.axis: 0 given; it must be greater than or equal to 1",
        "op.bert.local_service_conf.precision: 'fp31' given; "
        "allowed: 'fp32', 'fp16', 'bf16', 'int8' or 'auto'",
        "op.bert.local_service_conf.model_dir: unknown key; did you mean model_config?",
        "op.bert.concurency: unknown key; did you mean concurrency?",
        "limits.zzzzzz: unknown key; known here: body_bytes, bodies_bytes, response_bytes, header_count, "
        "header_bytes, json_depth, tensors, rows, kserve_rows, tensor_rank, text_chars, header_timeout_s, "
        "body_timeout_s, idle_timeout_s, metrics_interval_s, max_connections, connection_calls, sequences, "
        "sequence_bytes, sequence_idle_s, max_memory",
    ]


def test_keys_that_paddle_serving_ignored_are_told_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config.yml"
    path.write_text(
        """
http_port: 18082
grpc_gateway: false
dag: {tracer: {interval_s: 10, file: trace.log}}
op:
  pre_det: {concurrency: 3, device_type: 0, devices: "", thread_pool: 4}
  det:
    score_threshold: 0.5
    local_service_conf: {client_type: local_predictor, model_config: m, ipu_config: ./ipu}
    concurrency: 2
http_port: 18084
""",
        "utf-8",
    )
    config = load_config(path)
    assert (config.http_port, config.op["pre_det"].concurrency, config.op["det"].concurrency) == (18084, 3, 2)
    told = [record.getMessage().removeprefix(f"{path}: ") for record in caplog.records]
    known = ": unknown key, without effect; known here: "
    assert [line.split(known)[0] for line in told] == [
        "line 11: 'http_port' is given twice; the last counts",
        "dag.tracer.file",
        "op.pre_det.device_type: unknown key, without effect; it belongs in op.<name>.local_service_conf",
        "op.pre_det.devices: unknown key, without effect; it belongs in op.<name>.local_service_conf",
        "op.pre_det.thread_pool",
        "op.det.local_service_conf.ipu_config: unknown key, without effect; did you mean model_config?",
        "op.det.score_threshold",
        "grpc_gateway",
    ]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"http_port": None}, "http_port or rpc_port is needed, e.g. `http_port: 18082`"),
        ({"http_port": 65535}, "rpc_port: 65536 given; it must be less than or equal to 65535"),
        ({"rpc_port": 18082}, "http_port and rpc_port are both 18082; give each a port of its own"),
        (
            {"dag": {"enable_prometheus": True, "prometheus_port": 18082}},
            "http_port and dag.prometheus_port are both 18082; give each a port of its own",
        ),
        (
            {"v2": {"grpc_port": 18083}},
            "rpc_port and v2.grpc_port are both 18083; give each a port of its own",
        ),
        ({"dag": {"retry": True}}, "dag.retry: True given; expected an integer, not a boolean"),
        (
            {"dag": {"request_timeout": float("nan")}},
            "dag.request_timeout: nan given; expected a finite number",
        ),
        ({"op": ["bert"]}, "op: ['bert'] given; expected a section of keys and values"),
        *(
            (
                {"op": {"a": {"batch_size": v}}},
                f"op.a.batch_size: {v!r} given; expected an integer from 1 on, or 'auto'",
            )
            for v in ("automatic", 0, -1, ["auto"])
        ),
        (
            {"op": {"a": {"concurrency": 3, "max_concurrency": 2}}},
            "op.a.max_concurrency: 2 given; max_concurrency is below concurrency",
        ),
        (
            {"op": {"a": {"length_buckets": [64, 32]}}},
            "op.a.length_buckets: [64, 32] given; lengths must ascend",
        ),
        (
            {"op": {"a": {"server_endpoints": "here"}}},
            "op.a.server_endpoints: 'here' given; 'here' is not host:port",
        ),
        (
            {"op": {"a": {"local_service_conf": {"tensorrt": {"shapes": {"x": {"min": [1], "opt": [1]}}}}}}},
            "op.a.local_service_conf.tensorrt.shapes.x.max: missing",
        ),
        (
            {"op": {"a": {"local_service_conf": {"devices": "gpu"}}}},
            r"op.a.local_service_conf.devices: 'gpu' given; it must match ^(\d+(,\d+)*)?$",
        ),
    ],
)
def test_a_value_that_can_not_be_served_is_refused(config: dict[str, Any], told: str) -> None:
    (line,) = mistakes(config)
    assert line.startswith(told)


def test_the_order_of_tensorrt_shapes_is_checked() -> None:
    shapes = {"ids": {"min": [1, 8], "opt": [1, 4], "max": [1, 16]}}
    (line,) = mistakes({"op": {"a": {"local_service_conf": {"tensorrt": {"shapes": shapes}}}}})
    assert line.endswith("min [1, 8] <= opt [1, 4] <= max [1, 16] does not hold on every axis")


def test_arguments_of_an_op_win_over_the_file_and_none_is_not_given() -> None:
    config = load_config(
        {"http_port": 18082, "op": {"bert": {"concurrency": 1, "batch_size": 4}}},
        op_overrides={"bert": {"concurrency": 3, "batch_size": None}, "join": {"retry": 2}},
    )
    assert (config.op["bert"].concurrency, config.op["bert"].batch_size) == (3, 4)
    assert config.op["join"].retry == 2


def test_a_wrong_argument_of_an_op_is_told_as_one() -> None:
    assert mistakes({}, op_overrides={"bert": {"timeout": "soon"}}) == [
        "Op(name='bert', timeout=...): 'soon' given; expected an integer"
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"http_port: [1\nop: {", "config.yml: line 2, column 3: no valid YAML: "),
        (b"", "config.yml is empty; expected keys and values"),
        (b"- 1", "config.yml holds [1]; expected keys and values"),
        (
            b"a: !!python/object/apply:os.getcwd []",
            "config.yml: line 1, column 4: no valid YAML: could not determine",
        ),
        (
            "# \u79d2\nb: \u79d2".encode("gbk"),
            "config.yml: line 1: byte 0xc3 is no UTF-8; save the file as UTF-8",
        ),
        (b"dag:\n\tretry: 1", "config.yml: line 2, column 1: no valid YAML: found character '\\t'"),
        (b"#" * (1 << 21), "config.yml is over 1048576 bytes"),
    ],
    ids=["syntax", "empty", "list", "python-tag", "gbk", "tab", "huge"],
)
def test_a_file_that_is_no_configuration_is_refused_with_its_place(
    content: bytes, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.message.removeprefix(f"{tmp_path}/").startswith(told)


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        ("dag:\n\tretry: 1\n", "; indent with spaces, not with tabs"),
        (
            "op:\n  bert:\n    retry\uff1a 1\n    batch_size: 2\n",
            "; line 3 has the full-width '\uff1a', write ':'",
        ),
        ("dag:\n  retry: 1\n use_profile: true\n", "; the keys of a section begin in one column"),
    ],
    ids=["tab", "full-width colon", "columns"],
)
def test_what_people_write_that_is_no_yaml_is_told_with_its_remedy(
    content: str, remedy: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.message.endswith(remedy)


def test_keys_of_other_servers_and_short_timeouts_are_warnings_with_the_right_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config.yml"
    path.write_text(
        "http_port: 18082\nport: 80\ndag: {timeout: 5}\nop: {a: {timeout: 5}, b: {timeout: 500}, c: {}}\n"
    )
    load_config(path, op_overrides={"c": {"timeout": 30}})
    assert [record.getMessage().removeprefix(f"{path}: ") for record in caplog.records] == [
        "dag.timeout: unknown key, without effect; dag.request_timeout limits a request, in seconds; "
        "op.<name>.timeout limits a try of an Op, in milliseconds",
        "port: unknown key, without effect; http_port is for HTTP, rpc_port for gRPC",
        "op.a.timeout: 5 milliseconds; write 5000 for 5 seconds, or set dag.request_timeout, in seconds",
        "Op(name='c', timeout=...): 30 milliseconds; write 30000 for 30 seconds, or set "
        "dag.request_timeout, in seconds",
    ]


def test_a_port_alone_is_refused_with_the_right_key() -> None:
    with pytest.raises(ConfigError, match="port: unknown key; http_port is for HTTP"):
        load_config({"port": 18082})


class TestEnvironmentVariables:
    def load(self, folder: Path, text: str) -> ServiceConfig:
        (folder / "config.yml").write_text(text, "utf-8")
        return load_config(folder / "config.yml")

    def test_values_are_replaced_and_have_the_type_of_the_result(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PORT", "18084")
        monkeypatch.setenv("ROOT", "/models")
        monkeypatch.setenv("EMPTY", "")
        monkeypatch.delenv("UNSET", raising=False)
        config = self.load(
            tmp_path,
            """
http_port: ${PORT}
rpc_port: ${UNSET:-off}
dag: {use_profile: "${UNSET:-true}"}
op:
  ${PORT}:  # a key is as it is written
    concurrency: ${EMPTY:-3}
    local_service_conf:
      model_config: "${ROOT}/bert/$${PORT}"
      devices: ${EMPTY}
      fetch_list: ["${UNSET:-a}", '${PORT}']
""",
        )
        assert (config.http_port, config.rpc_port, config.dag.use_profile) == (18084, -1, True)
        op = config.op["${PORT}"]
        assert op.concurrency == 3 and op.local_service_conf is not None
        assert op.local_service_conf.model_dir == "/models/bert/${PORT}"
        assert (op.local_service_conf.devices, op.local_service_conf.fetch_list) == ("", ["a", "18084"])

    def test_all_unset_and_malformed_names_are_errors_with_line_and_key(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("UNSET", raising=False)
        with pytest.raises(ConfigError) as caught:
            self.load(tmp_path, "http_port: ${UNSET}\nop:\n  a:\n    fetch_list: ['x', '${1}']\n")
        path = tmp_path / "config.yml"
        assert caught.value.message.splitlines() == [
            f"{path}: line 1: http_port: environment variable UNSET is not set; set it, or write "
            "${UNSET:-default}",
            f"{path}: line 4: op.a.fetch_list.1: '${{1}}' given; write ${{NAME}} or ${{NAME:-default}}; $${{ "
            "stands for ${",
        ]

    def test_text_of_a_variable_is_no_yaml(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ROOT", "{a: 1} # x\nhttp_port: 1")
        section = "local_service_conf:\n      model_config: ${ROOT}\n"
        config = self.load(tmp_path, f"http_port: 18082\nop:\n  a:\n    {section}")
        conf = config.op["a"].local_service_conf
        assert conf is not None and conf.model_dir == "{a: 1} # x\nhttp_port: 1"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yml can't be read \(No such file or directory\)"):
        load_config(tmp_path / "nowhere.yml")


@pytest.mark.parametrize(
    ("dag", "admitted"),
    [
        ({}, 1000),
        ({"channel_size": 20}, 20),
        ({"max_pending_requests": 50}, 50),
        ({"max_pending_requests": 50, "channel_size": 20}, 20),
        ({"max_pending_requests": 0, "channel_size": 0}, 1000),
    ],
)
def test_channel_size_bounds_what_is_admitted(dag: dict[str, int], admitted: int) -> None:
    assert load_config({"http_port": 18082, "dag": dag}).dag.max_pending_requests == admitted


@pytest.mark.parametrize("key", ["channel_recv_frist_arrive", "channel_recv_first_arrive"])
def test_both_spellings_of_first_arrive_are_read(key: str) -> None:
    assert load_config({"http_port": 18082, "dag": {key: True}}).dag.channel_recv_frist_arrive is True


def test_a_configuration_survives_json_and_yaml() -> None:
    config = load_config(
        {
            "http_port": 18082,
            "dag": {"channel_size": 7, "channel_recv_frist_arrive": True},
            "op": {
                "bert": {
                    "local_service_conf": {"model_config": "m", "mkldnn_op_list": ["matmul"]},
                    "padding": {"feeds": {"mask": {"axis": 1, "value": float("-inf")}}, "fetches": {"a": 1}},
                }
            },
        }
    )
    assert ServiceConfig.model_validate_json(config.model_dump_json()) == config
    assert load_config(yaml.safe_load(dump_config(config))) == config


def test_a_configuration_can_not_be_changed() -> None:
    config = load_config({"http_port": 18082})
    with pytest.raises(ValueError, match="frozen"):
        config.dag.retry = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", ["v1", "v2", "health", "metrics", "docs", "", "a/b", "a b", "a:b"])
def test_names_that_are_no_path_segment_of_their_own_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="can't be named"):
        check_service_name(name)


@pytest.mark.parametrize("name", ["bert", "文本分类", "uci-2.0"])
def test_other_names_are_services(name: str) -> None:
    check_service_name(name)


def test_every_key_says_what_it_does() -> None:
    def undescribed(schema: dict[str, Any]) -> list[str]:
        models = [schema, *schema.get("$defs", {}).values()]
        return [
            key
            for m in models
            for key, value in m.get("properties", {}).items()
            if not value.get("description")
        ]

    assert undescribed(ServiceConfig.model_json_schema()) == []
