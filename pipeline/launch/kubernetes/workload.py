"""A service as a workload of Kubernetes: its configuration, and the values that config.yml does not hold."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pipeline.config.config_file import ServiceConfig
from pipeline.config.value_types import is_loopback
from pipeline.errors import ConfigError
from pipeline.offline.script_service import SCRIPT

SERVICE_FOLDER = PurePosixPath("/srv")
"""The folder of the service in its image, as in docs/deploy.md."""
SHARED_MEMORY_BYTES = 1 << 30  # of /dev/shm, for large tensors between the front and its workers
MAX_NAME_LENGTH = 50  # a label has 63 characters, and names of objects add an ending
_ENDPOINTS_S = 5  # until all nodes know that a pod takes no new connections
_WORKERS_S = 5  # that workers have to end after the last answer
_MARGIN_S = 5
_PORT_NAMES = {
    "http_port": "http",
    "rpc_port": "grpc",
    "v2.http_port": "v2-http",
    "v2.grpc_port": "v2-grpc",
    "v2.metrics_port": "v2-metrics",
    "dag.prometheus_port": "prometheus",
}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A service to be run on Kubernetes, with its configuration and needs."""

    name: str  # of every object, a DNS label
    image: str
    script: Path  # of the service on this machine
    config_path: Path
    config: ServiceConfig
    memory_bytes: int  # of front and workers
    min_replicas: int
    max_replicas: int
    queue_wait_s: float  # above it, replicas are added

    @property
    def command(self) -> list[str]:
        """The command that runs the script in the container, with the exported configuration."""
        folder, script = self.script.parent, self.script.name
        config = self.config_path.relative_to(folder)
        options = [] if str(config) == "config.yml" else ["--config", str(SERVICE_FOLDER / config)]
        place = SERVICE_FOLDER if script == SCRIPT else SERVICE_FOLDER / script
        return ["paddlewheel", "run", *options, str(place)]

    @property
    def ports(self) -> dict[str, int]:
        """Ports of the service, by their names in Kubernetes."""
        return {_PORT_NAMES[key]: port for key, port in self.config.ports().items()}

    @property
    def scheme(self) -> str:
        """Scheme of the HTTP port for Kubernetes probes: HTTP or HTTPS."""
        tls = self.config.tls
        return "HTTPS" if tls is not None and tls.http else "HTTP"

    @property
    def pre_stop_s(self) -> int:
        """Seconds that a stopping pod waits before SIGTERM; 0 if the service waits (`dag.drain_delay`)."""
        return 0 if self.config.dag.drain_delay else _ENDPOINTS_S

    @property
    def grace_s(self) -> int:
        """Grace period in seconds before Kubernetes kills a stopping pod: all its waits, and a margin."""
        dag = self.config.dag
        return self.pre_stop_s + math.ceil(dag.drain_delay + dag.drain_timeout) + _WORKERS_S + _MARGIN_S

    @property
    def start_s(self) -> int:
        """Seconds within which a pod must be ready: the longest `start_timeout` of its Ops (steps)."""
        return math.ceil(max((op.start_timeout for op in self.config.op.values()), default=60.0))

    @property
    def cores(self) -> int:
        """CPU cores that the front process and the threads of all models use at the same time."""
        config = self.config
        copies = config.worker_num if config.build_dag_each_worker else 1
        instances = [(op.concurrency * copies, op.local_model) for op in config.op.values()]
        return 1 + sum(number * (model.thread_num if model else 1) for number, model in instances)

    @property
    def cards(self) -> int:
        """Number of GPUs that `devices` of all models name."""
        models = [op.local_model for op in self.config.op.values()]
        return len({card for model in models if model for card in model.devices.split(",") if card})

    @property
    def remote_ports(self) -> list[int]:
        """Ports of the other servers that the Ops (steps) call: `server_endpoints` in config.yml."""
        endpoints = [endpoint for op in self.config.op.values() for endpoint in op.server_endpoints]
        return sorted({int(endpoint.rpartition(":")[2]) for endpoint in endpoints})

    @property
    def secret_files(self) -> dict[Path, PurePosixPath]:
        """Files with keys and certificates, as paths on this machine and in the container."""
        files = {Path(file).absolute() for file in _list_secret_files(self.config)}
        folder = self.script.parent
        return {
            file: SERVICE_FOLDER / file.relative_to(folder)
            if file.is_relative_to(folder)
            else PurePosixPath(file)
            for file in sorted(files)
        }

    def check(self) -> None:
        """Raise ConfigError if Kubernetes can't run the service with its configuration."""
        check_label(self.name)
        config, source, folder = self.config, self.config_path, self.script.parent
        if not source.is_relative_to(folder):
            raise ConfigError(f"--config {source} is outside {folder}, which the image has; move it there")
        if config.http_port is None:
            raise ConfigError(f"{source}: http_port is missing, and Kubernetes probes it; add http_port")
        for key in config.ports():
            if is_loopback(config.address(key)):
                field = "rpc_address" if key in ("rpc_port", "v2.grpc_port") else "http_address"
                raise ConfigError(
                    f"{source}: {field} {config.address(key)} is reached from the pod alone; remove it"
                )
        if self.scheme == "HTTPS" and config.tls is not None and config.tls.client_ca:
            raise ConfigError(
                f"{source}: tls.client_ca asks for certificates, which the probes of Kubernetes lack; "
                "set tls.http: false, or remove client_ca"
            )
        if config.security.api_keys and not config.security.open_health:
            raise ConfigError(
                f"{source}: security.open_health is false, and the probes of Kubernetes have no key; "
                "set it to true"
            )
        names = [file.name for file in self.secret_files]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"{source}: two files with keys or certificates are named {twice[0]}, and a Secret has one "
                "entry of a name; rename one"
            )
        if self.min_replicas > self.max_replicas:
            raise ConfigError(
                f"--replicas {self.min_replicas} is over --max-replicas {self.max_replicas}; lower it"
            )


def check_label(name: str) -> None:
    """Raise ConfigError if `name` can't be the beginning of names of Kubernetes objects."""
    if len(name) > MAX_NAME_LENGTH or not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name):
        raise ConfigError(
            f"the name {name!r} is no DNS label: lower-case letters, digits and '-', from a letter on, at "
            f"most {MAX_NAME_LENGTH}; give another one, e.g. --name my-service"
        )


def _list_secret_files(config: ServiceConfig) -> Iterator[str]:
    if config.security.api_keys:
        yield config.security.api_keys
    if config.tls is not None:
        yield from filter(None, (config.tls.cert, config.tls.key, config.tls.client_ca))
    yield from filter(None, (op.server_api_key_file for op in config.op.values()))
