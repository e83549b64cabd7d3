"""`paddlewheel export kubernetes`: measures a service, and writes its manifests."""

from __future__ import annotations

import dataclasses
import os
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml

from pipeline.config.config_file import ServiceConfig
from pipeline.errors import ConfigError
from pipeline.launch.command_options import ExportKubernetesOptions
from pipeline.launch.commands import find_service_files
from pipeline.launch.kubernetes.kserve import build_kserve_manifests
from pipeline.launch.kubernetes.manifests import Manifest, build_manifests
from pipeline.launch.kubernetes.workload import SERVICE_FOLDER, Workload
from pipeline.models.serving_model import choose_version, load_serving_model
from pipeline.offline.script_service import service_of_script
from pipeline.tuning.candidate import NotStarted, opened
from pipeline.tuning.sample import Example, build_requests

KSERVE_FOLDER = "kserve"
FORMAT_OF_ENGINE = {"onnxruntime": "onnx", "paddle": "paddle"}
_START_S = 600.0
_LOAD_S, _CONNECTIONS = 2.0, 8  # of the load before the memory is read


def export_kubernetes(options: ExportKubernetesOptions) -> None:
    """Write the manifests of a service into a new folder, and print how to apply them.

    The service is started for a few seconds to measure its memory, unless the options set the memory. Raises
    ConfigError, before the service starts, for settings that Kubernetes can't run.
    """
    script, config_path = find_service_files(options.service, options.config)
    script, config_path = script.absolute(), config_path.absolute()
    output = options.output.absolute()  # the script may change the working directory
    _check_output(output)
    service = service_of_script(script)
    service.configure(config_path)
    _, _, config = service.resolve()
    workload = Workload(
        name=options.name or service.name,
        image=options.image or f"{options.name or service.name}:latest",
        config=config,
        script=script,
        config_path=config_path,
        memory_bytes=options.memory,
        min_replicas=options.replicas,
        max_replicas=options.max_replicas,
        queue_wait_s=options.queue_wait_s,
    )
    workload.check()
    if not options.memory:
        workload = dataclasses.replace(workload, memory_bytes=measure_memory(script, config_path))
    files = dict(build_manifests(workload))
    if options.kserve:
        kserve = build_kserve_manifests(workload, _find_format(config), options.storage.rstrip("/"))
        files |= {f"{KSERVE_FOLDER}/{name}": manifest for name, manifest in kserve.items()}
    _write(output, files)
    sys.stdout.write(_next_steps(options, workload))


def measure_memory(script: Path, config: Path) -> int:
    """Start a service, load it with its example request, and return the memory of its processes in bytes.

    Raises ConfigError if the service does not start.
    """
    try:
        with (
            opened(script, config, "") as source,
            source.started(None, time.monotonic() + _START_S) as candidate,
        ):
            example = Example.of_openapi(msgspec.json.decode(candidate.get("/openapi.json")[1]))
            if example.key_values:  # else the warm-up runs of the models count alone
                requests = build_requests([], as_texts=False, example=example)
                candidate.load(requests, _CONNECTIONS, _LOAD_S, 0.0)
            return candidate.memory_bytes()
    except NotStarted as exc:
        raise ConfigError(
            f"{script}: its memory can't be measured: {exc.message}; mend it, or give --memory"
        ) from exc


def _check_output(output: Path) -> None:
    """Raise ConfigError if manifests can't be written to a folder, or the folder has other files."""
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output {output} is a file; name a folder that doesn't exist yet")
    if output.is_dir() and any(output.iterdir()):
        first = min(path.name for path in output.iterdir())
        raise ConfigError(
            f"--output {output} is not empty, it holds {first}; name a folder that doesn't exist yet"
        )
    existing = next(folder for folder in (output, *output.parents) if folder.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"--output {output} can't be written; name a folder in another place")


def _find_format(config: ServiceConfig) -> str:
    """Return KServe's model format name for the first model of a service."""
    for op in config.op.values():
        if (conf := op.local_model) is not None:
            folder = choose_version(Path(conf.model_dir), conf.model_version).directory
            return FORMAT_OF_ENGINE.get(load_serving_model(folder).engine, "triton")
    raise ConfigError("--kserve: no Op of the service has a model of its own; leave out --kserve")


def _write(output: Path, files: Mapping[str, Manifest]) -> None:
    try:
        for name, manifest in files.items():
            path = output / name
            path.parent.mkdir(parents=True, exist_ok=True)
            text = yaml.safe_dump(dict(manifest.content), sort_keys=False, allow_unicode=True)
            path.write_text(f"{_comment(manifest.remark)}\n{text}", "utf-8")
    except OSError as exc:
        raise ConfigError(f"--output {output} can't be written; name a folder in another place") from exc


def _comment(remark: str) -> str:
    return textwrap.fill(remark, 100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _next_steps(options: ExportKubernetesOptions, workload: Workload) -> str:
    secrets = ""
    if workload.secret_files:
        sources = " ".join(f"--from-file={file}" for file in workload.secret_files)
        secrets = f"  kubectl create secret generic {workload.name}-files {sources}\n"
    kserve = f"  kubectl apply -f {options.output / KSERVE_FOLDER}/FILE\n" if options.kserve else ""
    return (
        f"{options.output} has the manifests of {workload.name}: "
        f"{workload.memory_bytes >> 20} MiB of memory, {workload.cores} cores, "
        f"{workload.grace_s} s to stop. The image {workload.image} has the service in {SERVICE_FOLDER} "
        f"(docs/deploy.md).\n\n{secrets}  kubectl apply -f {options.output}\n{kserve}"
    )
