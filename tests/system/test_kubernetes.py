"""The manifests of `paddlewheel export kubernetes`, by the schemas of Kubernetes and of KServe."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.support.command_line import paddlewheel
from tests.support.onnx_models import bare

PACKAGES = Path(sys.prefix) / "kubernetes"  # of requirements/kubernetes.txt
VERSIONS = ("1.27", "1.37")  # of Kubernetes: an old one, and the newest of the package
OF_OPERATORS = ("ServiceMonitor", "PrometheusRule")  # kinds of the Prometheus operator, without a schema here


@pytest.fixture(scope="module")
def packages() -> Iterator[None]:
    """The packages can be imported; kserve without its server, which would import much else."""
    assert PACKAGES.is_dir(), "kubernetes-validate and kserve are not here; `make test-system` installs them"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PACKAGES))
        stub = ModuleType("kserve")
        stub.__path__ = [str(PACKAGES / "kserve")]
        patch.setitem(sys.modules, "kserve", stub)
        yield


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a service with keys, remote Ops and a drain delay of its own, by the names of the files."""
    folder = tmp_path_factory.mktemp("kubernetes")
    bare(folder, "scaled")
    assert paddlewheel("new", "scaling", "--model", folder / "scaled", "--copy", cwd=folder).returncode == 0
    (folder / "scaling" / "keys.txt").write_text(f"client:{'k' * 40}\n", "utf-8")
    config = folder / "scaling" / "config.yml"
    content = yaml.safe_load(config.read_text("utf-8"))
    content |= {"security": {"api_keys": "keys.txt"}, "dag": {"drain_delay": 3}}
    config.write_text(yaml.safe_dump(content), "utf-8")
    options = ("--output", "manifests", "--memory", "900Mi", "--kserve")
    done = paddlewheel("export", "kubernetes", "scaling", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    files = (folder / "manifests").rglob("*.yaml")
    return {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in files}


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field(packages: None, manifests: dict[str, Any], version: str) -> None:
    kubernetes_validate = importlib.import_module("kubernetes_validate")
    runtime = manifests["clusterservingruntime"]
    # The part of the runtime that is a pod's.
    pod_spec = {key: runtime["spec"][key] for key in ("containers", "volumes")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": runtime["metadata"], "spec": pod_spec}
    checked = [
        content
        for content in (*manifests.values(), pod)
        if "kserve" not in content["apiVersion"] and content["kind"] not in OF_OPERATORS
    ]
    assert len(checked) == 6
    for content in checked:
        kubernetes_validate.validate(content, version, strict=True)
    checked[0]["spec"]["unknown"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(checked[0], version, strict=True)
    del checked[0]["spec"]["unknown"]


@pytest.mark.parametrize(
    ("file", "model"),
    [
        ("clusterservingruntime", "V1alpha1ClusterServingRuntime"),
        ("inferenceservice", "V1beta1InferenceService"),
        ("inferenceservice-canary", "V1beta1InferenceService"),
    ],
)
def test_kserve_knows_every_field(packages: None, manifests: dict[str, Any], file: str, model: str) -> None:
    models = importlib.import_module("kserve.models")
    build(models, model, manifests[file])
    spec = manifests[file]["spec"]
    with pytest.raises(AssertionError, match="unknown"):
        build(models, model, {**manifests[file], "spec": {**spec, "unknown": 1}})


def build(models: ModuleType, name: str, content: dict[str, Any]) -> Any:
    """Return a model of KServe for a part of a manifest; AssertionError if the model lacks a field.

    The model's constructor checks that required fields are there.
    """
    model = getattr(models, name)
    fields = {key: field for field, key in model.attribute_map.items()}
    values = {}
    for key, value in content.items():
        assert key in fields, f"{name} has no field {key}"
        kind = re.sub(r"^list\[(.*)\]$", r"\1", model.openapi_types[fields[key]])
        if hasattr(models, kind):
            values[fields[key]] = (
                [build(models, kind, item) for item in value]
                if isinstance(value, list)
                else build(models, kind, value)
            )
        else:
            values[fields[key]] = value
    return model(**values)
