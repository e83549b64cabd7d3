"""The objects of KServe: a runtime for model repositories, and InferenceServices that use the runtime."""

from __future__ import annotations

from typing import Any

from pipeline.launch.kubernetes.manifests import USER, Manifest, build_container, build_object, build_volumes
from pipeline.launch.kubernetes.workload import Workload

RUNTIME = "paddlewheel"
FORMATS = {"paddle": "3", "onnx": "1", "triton": "2"}  # with the version that each declares
PROTOCOLS = ("v1", "v2", "grpc-v2")
CANARY_PERCENT = 10
GRACE_S = 45  # more than the 30 s of tritonserver's --exit-timeout-secs and the end of the workers
# The line for KServe in docs/triton.md, which tests/packaging/test_container.py runs.
COMMAND = (
    "tritonserver",
    "--model-store=/mnt/models",
    "--grpc-port=9000",
    "--http-port=8080",
    "--allow-grpc=true",
    "--allow-http=true",
)


def build_kserve_manifests(workload: Workload, model_format: str, storage: str) -> dict[str, Manifest]:
    """Return KServe manifests by file name: the runtime, an InferenceService, and its canary.

    model_format: a key of FORMATS. storage: URI of a folder with two model repositories named 1 and 2.
    """
    canary_remark = (
        f"The next version with {CANARY_PERCENT} % of the requests: apply it in place of "
        "inferenceservice.yaml. Remove canaryTrafficPercent to promote the version, or set it to 0 to "
        "return. Traffic is divided in KServe's serverless mode alone."
    )
    return {
        "clusterservingruntime.yaml": _runtime(workload),
        "inferenceservice.yaml": Manifest(
            _inference_service(workload, model_format, f"{storage}/1"),
            "storageUri is a model repository: a folder with a folder for each model. The script is not run.",
        ),
        "inferenceservice-canary.yaml": Manifest(
            _inference_service(workload, model_format, f"{storage}/2", canaryTrafficPercent=CANARY_PERCENT),
            canary_remark,
        ),
    }


def _runtime(workload: Workload) -> Manifest:
    container = build_container(workload, "kserve-container", list(COMMAND))
    container["securityContext"] |= USER  # a runtime has no security context of its pods
    container["ports"] = [{"name": "http1", "containerPort": 8080, "protocol": "TCP"}]
    ready, live = ({"httpGet": {"path": f"/v2/health/{page}", "port": 8080}} for page in ("ready", "live"))
    # The ports open after the first loads.
    container["startupProbe"] = {**ready, "periodSeconds": 2, "failureThreshold": -(-workload.start_s // 2)}
    container["readinessProbe"] = {**ready, "periodSeconds": 2}
    container["livenessProbe"] = {**live, "periodSeconds": 10, "timeoutSeconds": 5}
    spec = {
        "annotations": {"prometheus.kserve.io/port": "8080", "prometheus.kserve.io/path": "/metrics"},
        "supportedModelFormats": [
            {"name": name, "version": version, "autoSelect": True, "priority": 1}
            for name, version in FORMATS.items()
        ],
        "protocolVersions": list(PROTOCOLS),
        "containers": [container],
        "volumes": build_volumes(),
    }
    content = build_object("serving.kserve.io/v1alpha1", "ClusterServingRuntime", RUNTIME, spec)
    remark = (
        "Serves the model repository that KServe mounts at /mnt/models. An InferenceService for gRPC names "
        "the port in its model: ports: [{name: h2c, containerPort: 9000, protocol: TCP}]."
    )
    return Manifest(content, remark)


def _inference_service(
    workload: Workload, model_format: str, storage: str, **predictor: Any
) -> dict[str, Any]:
    spec = {
        "predictor": {
            **predictor,
            "minReplicas": workload.min_replicas,
            "maxReplicas": workload.max_replicas,
            "terminationGracePeriodSeconds": GRACE_S,
            "model": {
                "runtime": RUNTIME,
                "modelFormat": {"name": model_format, "version": FORMATS[model_format]},
                "protocolVersion": "v2",
                "storageUri": storage,
            },
        }
    }
    return build_object("serving.kserve.io/v1beta1", "InferenceService", workload.name, spec)
