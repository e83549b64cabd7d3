"""The section of an Op whose model other servers run: what it must say, and what it leaves to defaults."""

from __future__ import annotations

from pipeline.config.op_section import OpConfig
from pipeline.config.value_types import ClientType

LONGEST_TRY_MS = 600_000  # where neither op.<name>.timeout nor dag.request_timeout bounds a call
CHOICE = (
    "pipeline_grpc for another Pipeline service, grpc for a KServe v2 service (Triton, say); or remove "
    "server_endpoints and run the model here, with local_service_conf"
)


def remote_flaws(name: str, section: OpConfig, default: ClientType | None) -> list[str]:
    """What is wrong with the section, a sentence each. `default` is dag.client_type."""
    if not section.server_endpoints:
        remote = {
            "model_name": "it names a remote model",
            "server_api_key_file": "its key is for server_endpoints",
        }
        given = [key for key in remote if getattr(section, key)]
        return [f"op.{name}.{key}: {remote[key]}; give server_endpoints, or remove it" for key in given]
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


def completed(name: str, section: OpConfig, default: ClientType | None, request_timeout_s: float) -> OpConfig:
    """A section without flaws, with what it left to defaults; one without server_endpoints as it is."""
    if not section.server_endpoints:
        return section
    client_type = section.client_type or default
    return section.model_copy(
        update={
            "client_type": client_type,
            "model_name": section.model_name or (name if client_type == "grpc" else ""),
            "timeout": section.timeout
            if section.timeout > 0
            else int(request_timeout_s * 1000) or LONGEST_TRY_MS,
            "local_service_conf": None,  # as in Paddle Serving, endpoints go before it
        }
    )
