"""`paddlewheel export kubernetes`: manifests from a service's configuration, and refused input."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.config_file import ServiceConfig, load_config
from pipeline.errors import ConfigError
from pipeline.launch.kubernetes.kserve import COMMAND, FORMATS
from pipeline.launch.kubernetes.manifests import QUEUE_WAIT, build_manifests
from pipeline.launch.kubernetes.workload import Workload
from tests.support.command_line import paddlewheel, refused
from tests.support.followed_documents import blocks_of
from tests.support.free_ports import free_port
from tests.support.onnx_models import bare
from tests.support.service_process import APPS, ROOT, ServiceProcess

PAGE = ROOT / "docs" / "deploy.md"
GRACE_BESIDE_DRAIN_S = 10  # the end of the workers, and a margin


def workload(
    folder: Path = Path("/services/news"), config_name: str = "config.yml", **config: Any
) -> Workload:
    loaded = config.pop("loaded", None) or load_config({"http_port": 18082, **config})
    assert isinstance(loaded, ServiceConfig)
    return Workload(
        name="news",
        image="news:1",
        config=loaded,
        script=folder / "web_service.py",
        config_path=folder / config_name,
        memory_bytes=300 << 20,
        min_replicas=2,
        max_replicas=5,
        queue_wait_s=0.05,
    )


def pod(**config: Any) -> dict[str, Any]:
    content = build_manifests(workload(**config))["deployment.yaml"].content
    template: dict[str, Any] = content["spec"]["template"]["spec"]
    return template


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kubernetes")
    bare(folder, "scaled")
    ports = ("--http-port", str(free_port()), "--rpc-port", str(free_port()))
    done = paddlewheel("new", "myservice", "--model", folder / "scaled", "--copy", *ports, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "myservice"


def test_the_manifests_of_a_service_have_its_own_values(service: Path) -> None:
    (command,) = (block.text for block in blocks_of(PAGE) if "export kubernetes" in block.text)
    done = paddlewheel(*shlex.split(command)[1:], "--replicas", "3", cwd=service.parent)
    assert done.returncode == 0, done.stderr
    output = service.parent / "manifests"
    objects = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in output.rglob("*.yaml")}
    config = yaml.safe_load((service / "config.yml").read_text("utf-8"))
    ports = {"http": config["http_port"], "grpc": config["rpc_port"]}
    template = objects["deployment.yaml"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
    assert container["command"] == ["paddlewheel", "run", "/srv"]
    assert container["image"].endswith("/myservice:1")
    served = objects["service.yaml"]["spec"]
    assert {port["name"]: port["port"] for port in served["ports"]} == ports
    labels = template["metadata"]["labels"]
    assert served["selector"] == labels
    for name in ("deployment", "poddisruptionbudget", "servicemonitor"):
        assert objects[f"{name}.yaml"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["networkpolicy.yaml"]["spec"]["podSelector"]["matchLabels"] == labels
    scaled = objects["horizontalpodautoscaler.yaml"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == objects["deployment.yaml"]["metadata"]["name"] == "myservice"
    assert (scaled["minReplicas"], scaled["metrics"][0]["pods"]["metric"]["name"]) == (3, QUEUE_WAIT)
    # Front and worker of the started service; the limit leaves room for growth and /dev/shm.
    memory = {kind: int(sizes["memory"].removesuffix("Mi")) for kind, sizes in container["resources"].items()}
    assert 64 <= memory["requests"] < memory["limits"] - 1024
    assert f"{output.name} has the manifests of myservice" in done.stdout
    listed = set(re.findall(r"^\| `(\S+\.yaml)` \|", PAGE.read_text("utf-8"), re.M))
    assert {str(path.relative_to(output)) for path in output.rglob("*.yaml")} == listed


def test_kserve_gets_a_runtime_and_a_canary(service: Path) -> None:
    output = service.parent / "kserve"
    options = ("--memory", "1Gi", "--kserve", "--storage", "s3://models/scaling/", "--image", "scaling:2")
    done = paddlewheel("export", "kubernetes", service, "--output", output, *options)
    assert done.returncode == 0, done.stderr
    runtime, stable, canary = (
        yaml.safe_load((output / "kserve" / f"{name}.yaml").read_text("utf-8"))
        for name in ("clusterservingruntime", "inferenceservice", "inferenceservice-canary")
    )
    assert [entry["name"] for entry in runtime["spec"]["supportedModelFormats"]] == list(FORMATS)
    assert runtime["spec"]["protocolVersions"] == ["v1", "v2", "grpc-v2"]
    (container,) = runtime["spec"]["containers"]
    assert f"| KServe | `{' '.join(container['command'])}`" in (ROOT / "docs/triton.md").read_text("utf-8")
    assert (container["image"], list(COMMAND)) == ("scaling:2", container["command"])
    models = [document["spec"]["predictor"]["model"] for document in (stable, canary)]
    assert [model["storageUri"] for model in models] == ["s3://models/scaling/1", "s3://models/scaling/2"]
    assert {model["modelFormat"]["name"] for model in models} == {"onnx"}
    assert {model["runtime"] for model in models} == {runtime["metadata"]["name"]}
    assert stable["metadata"] == canary["metadata"]
    percents = [document["spec"]["predictor"].get("canaryTrafficPercent") for document in (stable, canary)]
    assert percents == [None, 10]


@pytest.mark.parametrize(("delay", "waits"), [(0, 5), (8, 0)])
def test_the_grace_period_covers_the_drain(delay: int, waits: int) -> None:
    """A service with a drain delay waits itself; else the pod waits before SIGTERM."""
    spec = pod(dag={"drain_delay": delay, "drain_timeout": 20})
    (container,) = spec["containers"]
    hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
    assert hook == ["sleep", str(waits)]
    assert spec["terminationGracePeriodSeconds"] == delay + waits + 20 + GRACE_BESIDE_DRAIN_S


def test_a_pod_is_probed_and_has_no_privileges() -> None:
    spec = pod(op={"news": {"start_timeout": 90, "concurrency": 2}})
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 1000
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/tmp", "/dev/shm"}
    paths = {
        kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")
    }
    assert paths == {"startup": "/health/ready", "readiness": "/health/ready", "liveness": "/health/live"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 90
    assert container["resources"]["requests"] == {"cpu": "3", "memory": "320Mi"}


def test_keys_and_certificates_are_mounted_from_a_secret(tmp_path: Path) -> None:
    config = ServiceConfig.model_validate(
        {
            "http_port": 18082,
            "tls": {"cert": str(tmp_path / "tls/cert.pem"), "key": "/etc/keys/key.pem"},
            "security": {"api_keys": str(tmp_path / "keys.txt")},
        },
        by_name=False,
        by_alias=True,
    )
    secured = workload(tmp_path, loaded=config)
    secured.check()
    manifests = build_manifests(secured)
    spec = manifests["deployment.yaml"].content["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    mounts = {
        mount["mountPath"]: mount["subPath"] for mount in container["volumeMounts"] if "subPath" in mount
    }
    assert mounts == {
        "/srv/keys.txt": "keys.txt",
        "/srv/tls/cert.pem": "cert.pem",
        "/etc/keys/key.pem": "key.pem",
    }
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    (endpoint,) = manifests["servicemonitor.yaml"].content["spec"]["endpoints"]
    assert (
        endpoint["scheme"] == "https" and endpoint["authorization"]["credentials"]["name"] == "news-metrics"
    )


def test_another_configuration_is_named_in_the_command_of_the_pod() -> None:
    command = workload(config_name="production/config.yml").command
    assert command == ["paddlewheel", "run", "--config", "/srv/production/config.yml", "/srv"]
    with pytest.raises(ConfigError, match=r"outside /services/news, which the image has; move it there"):
        workload(config_name="/etc/config.yml").check()


def test_the_recorded_series_is_made_of_series_that_there_are() -> None:
    (group,) = build_manifests(workload())["prometheusrule.yaml"].content["spec"]["groups"]
    (rule,) = group["rules"]
    assert rule["record"] == QUEUE_WAIT
    names = set(re.findall(r"paddlewheel_\w+", rule["expr"]))
    with ServiceProcess(APPS / "echo.py") as running:
        metrics = running.http("/metrics").body.decode()
    assert names and all(re.search(rf"^{name}{{", metrics, re.M) for name in names)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"http_port": None, "rpc_port": 8088}, "http_port is missing"),
        ({"http_address": "127.0.0.1"}, "http_address 127.0.0.1 .* remove it"),
        (
            {"tls": {"cert": "a", "key": "b", "client_ca": "c"}},
            "tls.client_ca .* set tls.http: false",
        ),
        ({"security": {"api_keys": "a", "open_health": False}}, "security.open_health is false"),
        ({"tls": {"cert": "a/pem", "key": "b/pem"}}, "named pem, .* rename one"),
    ],
)
def test_a_configuration_that_can_not_be_probed_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        workload(**config).check()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "--output", "new"), "nowhere is not a file; name a service's folder or its script"),
        (("empty", "--output", "new"), "config.yml is not a file; name the configuration with --config"),
        (("myservice", "--output", "full"), "full is not empty, it holds file"),
        (("myservice", "--output", "full/file"), "is a file; name a folder"),
        (("myservice", "--output", "/proc/new"), "/proc/new can't be written"),
        (("myservice", "--output", "new", "--name", "My_Service"), "'My_Service' is no DNS label"),
        (("myservice", "--output", "new", "--memory", "2"), "'2' is no size like 900Mi or 2Gi"),
        (("myservice", "--output", "new", "--queue-wait", "soon"), "--queue-wait 'soon' is no time"),
        (("myservice", "--output", "new", "--replicas", "20"), "--replicas 20 is over --max-replicas 10"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_bad_input_is_told_in_one_sentence(service: Path, arguments: tuple[str, ...], message: str) -> None:
    folder = service.parent
    for name in ("empty", "full"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "empty" / "web_service.py").touch()
    (folder / "full" / "file").touch()
    memory = () if "--memory" in arguments else ("--memory", "1Gi")
    told = refused(paddlewheel("export", "kubernetes", *arguments, *memory, cwd=folder))
    assert re.search(re.escape(message), told)
    assert not (folder / "new").exists()
