"""Checks and defaults of the section of a remote Op, whose model runs on other servers."""

from __future__ import annotations

from pipeline.config.op_section import OpConfig
from pipeline.config.value_types import ClientType

MAX_TRY_MS = 600_000  # where neither op.<name>.timeout nor dag.request_timeout bounds a call
CHOICE = (
    "pipeline_grpc for another Pipeline service, grpc for a KServe v2 service (Triton, say); or remove "
    "server_endpoints and run the model here, with local_service_conf"
)


def find_remote_errors(name: str, section: OpConfig, default: ClientType | None) -> list[str]:
    """Return the errors of a section, a sentence each. `default` is dag.client_type."""
    if not section.server_endpoints:
        remote = {
            "model_name": "it names a remote model",
            "server_api_key_file": "its key is for server_endpoints",
        }
        present = [key for key in remote if getattr(section, key)]
        return [f"op.{name}.{key}: {remote[key]}; give server_endpoints, or remove it" for key in present]
    client_type = section.client_type or default
    match client_type:
        case "grpc":
            return []
        case "pipeline_grpc" if section.model_name:
            return [f"op.{name}.model_name: a Pipeline service has no models to choose from; remove it"]
        case "pipeline_grpc":
            return []
        case "brpc":
            key = f"op.{name}.client_type" if section.client_type else "dag.client_type"
            return [f"{key}: 'brpc' given; there is no brpc client for this Python. Choose {CHOICE}"]
        case "local_predictor":
            return [f"op.{name}.client_type: 'local_predictor' given, with server_endpoints. Choose {CHOICE}"]
        case None:
            return [
                f"op.{name}.client_type: missing; what do the server_endpoints speak? Paddle Serving took "
                f"brpc, for which this Python has no client. Choose {CHOICE}"
            ]


def complete_section(
    name: str, section: OpConfig, default: ClientType | None, request_timeout_s: float
) -> OpConfig:
    """Fill in the defaults of a valid remote section. Other sections are returned unchanged."""
    if not section.server_endpoints:
        return section
    client_type = section.client_type or default
    return section.model_copy(
        update={
            "client_type": client_type,
            "model_name": section.model_name or (name if client_type == "grpc" else ""),
            "timeout": section.timeout
            if section.timeout > 0
            else int(request_timeout_s * 1000) or MAX_TRY_MS,
            "local_service_conf": None,  # as in Paddle Serving, endpoints win over it
        }
    )
