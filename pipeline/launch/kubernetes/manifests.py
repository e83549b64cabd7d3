"""The objects of Kubernetes that run a service, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pipeline.launch.kubernetes.workload import SHARED_MEMORY_BYTES, Workload

USER = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The part of a security context that names a user without privileges."""
QUEUE_WAIT = "paddlewheel_queue_wait_seconds"
"""The series that the PrometheusRule records, and the HorizontalPodAutoscaler reads."""
MONITORING_NAMESPACE = "monitoring"
_STEP_BYTES = 64 << 20  # memory is rounded up to it
_PROBE_S = 2
_CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


class Manifest(NamedTuple):
    """A Kubernetes object, and a remark for the reader of the manifest."""

    content: Mapping[str, Any]
    remark: str


def build_manifests(workload: Workload) -> dict[str, Manifest]:
    """Return the Kubernetes objects that run a service, by the names of their files."""
    return {
        "deployment.yaml": _deployment(workload),
        "service.yaml": _service(workload),
        "poddisruptionbudget.yaml": _disruption_budget(workload),
        "horizontalpodautoscaler.yaml": _autoscaler(workload),
        "prometheusrule.yaml": _prometheus_rule(workload),
        "servicemonitor.yaml": _service_monitor(workload),
        "networkpolicy.yaml": _network_policy(workload),
    }


def build_object(api: str, kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Kubernetes object with the labels of the application."""
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, "labels": _labels(name)},
        "spec": spec,
    }


def build_container(workload: Workload, name: str, command: list[str]) -> dict[str, Any]:
    """Return a container with measured resources, a read-only root, and writable /tmp and /dev/shm."""
    return {
        "name": name,
        "image": workload.image,
        "command": command,
        "resources": _resources(workload),
        "securityContext": dict(_CONTAINER_SECURITY),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


def build_volumes() -> list[dict[str, Any]]:
    """Return the pod's volumes that `build_container` mounts: /tmp and /dev/shm."""
    return [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _mebibytes(SHARED_MEMORY_BYTES)}},
    ]


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": name}


def _mebibytes(size: float) -> str:
    return f"{-int(-size // _STEP_BYTES) * (_STEP_BYTES >> 20)}Mi"


def _resources(workload: Workload) -> dict[str, Any]:
    cards = {"nvidia.com/gpu": str(workload.cards)} if workload.cards else {}
    limit = 1.5 * workload.memory_bytes + SHARED_MEMORY_BYTES
    return {
        "requests": {"cpu": str(workload.cores), "memory": _mebibytes(workload.memory_bytes)},
        "limits": {"memory": _mebibytes(limit), **cards},
    }


def _probe(workload: Workload, path: str, **times: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "http", "scheme": workload.scheme}, **times}


def _service_container(workload: Workload) -> dict[str, Any]:
    container = build_container(workload, "service", workload.command)
    container["ports"] = [{"name": name, "containerPort": port} for name, port in workload.ports.items()]
    container["volumeMounts"] += [
        {"name": "files", "mountPath": str(place), "subPath": file.name, "readOnly": True}
        for file, place in workload.secret_files.items()
    ]
    container["startupProbe"] = _probe(
        workload,
        "/health/ready",
        periodSeconds=_PROBE_S,
        timeoutSeconds=5,
        failureThreshold=-(-workload.start_s // _PROBE_S),
    )
    container["readinessProbe"] = _probe(
        workload, "/health/ready", periodSeconds=_PROBE_S, timeoutSeconds=2, failureThreshold=2
    )
    container["livenessProbe"] = _probe(
        workload, "/health/live", periodSeconds=10, timeoutSeconds=5, failureThreshold=3
    )
    if workload.pre_stop_s:
        container["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", str(workload.pre_stop_s)]}}}
    return container


def _deployment(workload: Workload) -> Manifest:
    secret = {"name": "files", "secret": {"secretName": f"{workload.name}-files"}}
    pod = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": workload.grace_s,
        "securityContext": {**USER, "fsGroup": USER["runAsUser"]},
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": _labels(workload.name)},
            }
        ],
        "containers": [_service_container(workload)],
        "volumes": build_volumes() + ([secret] if workload.secret_files else []),
    }
    spec = {
        "selector": {"matchLabels": _labels(workload.name)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {"metadata": {"labels": _labels(workload.name)}, "spec": pod},
    }
    remark = (
        "The HorizontalPodAutoscaler sets the number of replicas. CPU has no limit, because throttling "
        f"delays answers. The service needs {workload.memory_bytes >> 20} MiB of memory; the limit is 1.5 "
        "times as much, and /dev/shm."
    )
    return Manifest(build_object("apps/v1", "Deployment", workload.name, spec), remark)


def _service(workload: Workload) -> Manifest:
    plain_grpc = {"appProtocol": "kubernetes.io/h2c"} if workload.config.tls is None else {}
    ports = [
        {"name": name, "port": port, "targetPort": name, **(plain_grpc if "grpc" in name else {})}
        for name, port in workload.ports.items()
    ]
    spec = {"selector": _labels(workload.name), "ports": ports}
    remark = "A gRPC client keeps one connection, and so one pod: use a client or a mesh that balances calls."
    return Manifest(build_object("v1", "Service", workload.name, spec), remark)


def _disruption_budget(workload: Workload) -> Manifest:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": _labels(workload.name)}}
    remark = "Drained nodes stop one pod at a time."
    return Manifest(build_object("policy/v1", "PodDisruptionBudget", workload.name, spec), remark)


def _autoscaler(workload: Workload) -> Manifest:
    target = {"type": "AverageValue", "averageValue": f"{round(workload.queue_wait_s * 1000)}m"}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": workload.name},
        "minReplicas": workload.min_replicas,
        "maxReplicas": workload.max_replicas,
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": QUEUE_WAIT}, "target": target}}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}},
    }
    remark = (
        f"Replicas follow the time in queues. prometheusrule.yaml records {QUEUE_WAIT}, and the Prometheus "
        "adapter, with its default rules, passes it to Kubernetes."
    )
    return Manifest(build_object("autoscaling/v2", "HorizontalPodAutoscaler", workload.name, spec), remark)


def _prometheus_rule(workload: Workload) -> Manifest:
    selector = f'{{service="{workload.name}"}}'
    seconds, count = (
        f"sum by (namespace, pod) (rate(paddlewheel_op_queue_seconds_{part}{selector}[1m]))"
        for part in ("sum", "count")
    )
    # Without requests the quotient is no number: the second half is 0 then.
    rule = {"record": QUEUE_WAIT, "expr": f"{seconds} / ({count} > 0) or 0 * {count}"}
    spec = {"groups": [{"name": workload.name, "interval": "15s", "rules": [rule]}]}
    remark = "The mean time of a request in the queues of each pod, in seconds."
    return Manifest(build_object("monitoring.coreos.com/v1", "PrometheusRule", workload.name, spec), remark)


def _service_monitor(workload: Workload) -> Manifest:
    endpoint: dict[str, Any] = {"port": "http", "path": "/metrics", "interval": "15s"}
    remark = "Prometheus reads /metrics of each pod."
    if workload.scheme == "HTTPS":
        endpoint |= {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
        remark += " Pods have no name in the certificate, so that it is not verified."
    security = workload.config.security
    if security.api_keys and not security.open_metrics:
        endpoint["authorization"] = {"credentials": {"name": f"{workload.name}-metrics", "key": "api-key"}}
        remark += f" The Secret {workload.name}-metrics holds an API key for it."
    spec = {"selector": {"matchLabels": _labels(workload.name)}, "endpoints": [endpoint]}
    return Manifest(build_object("monitoring.coreos.com/v1", "ServiceMonitor", workload.name, spec), remark)


def _network_policy(workload: Workload) -> Manifest:
    monitoring = {"kubernetes.io/metadata.name": MONITORING_NAMESPACE}
    remote = [{"protocol": "TCP", "port": port} for port in workload.remote_ports]
    spec = {
        "podSelector": {"matchLabels": _labels(workload.name)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {"from": [{"podSelector": {}}], "ports": [{"port": name} for name in workload.ports]},
            {
                "from": [{"namespaceSelector": {"matchLabels": monitoring}}],
                "ports": [{"port": "http"}],
            },
        ],
        "egress": [
            {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]},
            *([{"ports": remote}] if remote else []),
        ],
    }
    remark = (
        f"Pods of this namespace may ask, and Prometheus in the namespace {MONITORING_NAMESPACE}. The "
        "service reaches name servers and its server_endpoints. Add the namespace of an ingress controller."
    )
    return Manifest(build_object("networking.k8s.io/v1", "NetworkPolicy", workload.name, spec), remark)
