"""docker/observe/: Prometheus evaluates the queries of the dashboard and the rules, for a faulty service."""

from __future__ import annotations

import json
import math
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import onnx_models
from tests.support.free_ports import free_port
from tests.support.prometheus_process import PrometheusProcess, find_prometheus, running_prometheus
from tests.support.service_process import APPS, PATIENCE_S, ROOT, ServiceProcess, key_value, wait_until

OBSERVE = ROOT / "docker" / "observe"
RULES = OBSERVE / "alerts.yml"
CASES = Path(__file__).with_name("alert_cases.yml")
DASHBOARD = json.loads((OBSERVE / "grafana" / "paddlewheel.json").read_text("utf-8"))
ALERTS = {
    rule["alert"]: rule["expr"] for rule in yaml.safe_load(RULES.read_text("utf-8"))["groups"][0]["rules"]
}
# The alerts that hold for the service below, apart from their `for`.
CAUSED = {
    "PaddlewheelDown",  # of the target that nothing listens on
    "PaddlewheelServerErrors",
    "PaddlewheelOverloaded",
    "PaddlewheelDeadlines",
    "PaddlewheelRestarts",
    "PaddlewheelKeyLimited",
    "PaddlewheelTracesLost",
}
KEY, LIMITED_KEY = "owner-0123456789abcdef", "limited-0123456789abcdef"
INSTANCES, KILLS = 2, 3
PAUSE_S = 0.02  # between the requests of the traffic


def list_queries() -> Iterator[Any]:
    """The queries of all panels, and the selectors of the variables, as Grafana sends them."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield pytest.param(fill_in(target["expr"]), id=f"{panel['title']} {target['refId']}")
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), \w+\)", variable["query"]["query"])
            assert match is not None
            yield pytest.param(fill_in(match[1]), id=f"variable {variable['name']}")


def fill_in(query: str) -> str:
    """Replace the variables of the dashboard by values."""
    values = {"$__rate_interval": "30s", "$job": "paddlewheel", "$instance": ".*"}
    for variable, value in values.items():
        query = query.replace(variable, value)
    assert "$" not in query
    return query


class Traffic:
    """Requests of each outcome, one after the other, until the end of the `with` block."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(PAUSE_S):
            self._ask("well")
            self._ask("raises")
            self._ask("invalid")
            self._ask("well", **{"grpc-timeout": "1u"})
            self._ask("well", key=LIMITED_KEY)

    def _ask(self, how: str, key: str = KEY, **headers: str) -> None:
        body = key_value({"how": how})
        self._service.http("/test/prediction", body, headers={"X-API-Key": key, **headers})


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service of one Op, with API keys, and with a collector that is down."""
    folder = tmp_path_factory.mktemp("faults")
    keys = folder / "keys"
    keys.write_text(f"owner:{KEY}\nlimited:{LIMITED_KEY} rate=0.001\n")
    keys.chmod(0o600)
    conf = {"model_config": str(onnx_models.bare(folder, "captioned")), "thread_num": 1}
    config = {
        "dag": {"http_errors": "status"},
        "security": {"api_keys": str(keys), "open_metrics": True},
        "op": {"faulty": {"concurrency": INSTANCES, "local_service_conf": conf}},
        "trace": {
            "mode": "opentelemetry",
            "level": "TIMESTAMPS",
            "rate": 1,
            "url": f"http://127.0.0.1:{free_port()}/v1/traces",
            "bsp_max_export_batch_size": 1,
        },
    }
    with ServiceProcess(APPS / "faults.py", config) as service:
        service.wait_until_ready(every_instance=True)
        yield service


@pytest.fixture(scope="module")
def prometheus(
    service: ServiceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusProcess]:
    """A Prometheus that has scraped the service before, between and after the ends of some workers."""
    folder, ports = tmp_path_factory.mktemp("prometheus"), [service.http_port, free_port()]
    restarts = "sum(paddlewheel_op_restarts_total)"
    with (
        Traffic(service),
        running_prometheus(folder, "paddlewheel", ports, rules=str(RULES)) as prometheus,
    ):
        for number in range(KILLS + 1):
            wait_until(
                lambda number=number: prometheus.read_values(restarts) == [number], f"{number} restarts"
            )
            if number < KILLS:
                wait_until(
                    lambda: service.metric("paddlewheel_op_ready_instances") == INSTANCES, "all are ready"
                )
                service.kill_worker()
        yield prometheus


def wait_for_data(prometheus: PrometheusProcess, expression: str) -> None:
    def returns_data() -> bool:
        values = prometheus.read_values(expression)
        return bool(values) and not any(map(math.isnan, values))

    wait_until(returns_data, expression, on_timeout=lambda: str(prometheus.read_values(expression)))


@pytest.mark.parametrize("query", [*list_queries()])
def test_each_query_of_the_dashboard_returns_data(prometheus: PrometheusProcess, query: str) -> None:
    wait_for_data(prometheus, query)


@pytest.mark.parametrize("alert", [*ALERTS])
def test_what_each_alert_compares_is_measured(prometheus: PrometheusProcess, alert: str) -> None:
    compared, operator, _ = ALERTS[alert].rsplit(maxsplit=2)
    assert operator in (">", "==")
    wait_for_data(prometheus, ALERTS[alert] if alert in CAUSED else compared)


def test_prometheus_evaluates_the_rules_without_an_error(prometheus: PrometheusProcess) -> None:
    def are_evaluated() -> bool:
        return {rule["name"]: rule["health"] for rule in list_rules()} == dict.fromkeys(ALERTS, "ok")

    def list_rules() -> list[dict[str, Any]]:
        return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

    wait_until(are_evaluated, "all rules are evaluated", on_timeout=lambda: str(list_rules()))


@pytest.mark.parametrize(
    "command", [("check", "rules", RULES), ("test", "rules", CASES)], ids=["check", "test"]
)
def test_promtool_accepts_the_rules(command: tuple[str | Path, ...]) -> None:
    promtool = str(Path(find_prometheus()).with_name("promtool"))
    done = subprocess.run(
        [promtool, *command], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_where_it_fires_and_one_where_it_does_not() -> None:
    cases = [
        case for test in yaml.safe_load(CASES.read_text("utf-8"))["tests"] for case in test["alert_rule_test"]
    ]
    fires = {(case["alertname"], bool(case["exp_alerts"])) for case in cases}
    assert fires == {(alert, is_firing) for alert in ALERTS for is_firing in (True, False)}
