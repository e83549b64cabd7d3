"""Ensembles whose steps run in one worker, one after the other: which do, and in how many workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from client.protos.kserve_v2_pb2 import ModelConfig
from pipeline.api.app import ServedModel
from pipeline.api.dag import Dag
from pipeline.api.queue_policy import ModelBatching
from pipeline.errors import ConfigError
from pipeline.triton.ragged_batch import has_ragged_tensors

PARAMETER = "paddlewheel.ensemble_workers"  # of an ensemble: the number of workers that run all its steps
MAX_WORKERS = 1024


def parse_workers(config: ModelConfig) -> int:
    """Return how many workers are to run all steps of an ensemble, by a parameter in config.pbtxt.

    Returns 0 without the parameter. Raises ConfigError for an invalid number.
    """
    if PARAMETER not in config.parameters:
        return 0
    text = config.parameters[PARAMETER].string_value
    if not (text.isascii() and text.isdecimal() and int(text) <= MAX_WORKERS):
        raise ConfigError(f"parameter {PARAMETER} is {text!r}: write a number from 0 to {MAX_WORKERS}")
    return int(text)


def find_obstacle(
    graph: Dag, models: Mapping[str, ServedModel], sections: Mapping[str, Any], *, limits_runs: bool = False
) -> str:
    """Return why one worker can't run all steps of an ensemble; empty if one worker can.

    With an obstacle, the front process dispatches each step separately. It then enforces queue policies and
    orders between the steps, and forwards several answers of a step. models, sections: dicts by the name of
    the step's Op. limits_runs: the server has a rate limiter.
    """
    for op in graph.ops:
        model, section = models[op], sections[op]
        config = model.config or {}
        engine = section.get("local_service_conf", {})
        if model.is_decoupled:
            return f"model {model.name} is decoupled"
        if config.get("sequence_batching"):
            return f"model {model.name} has sequences"
        if model.batching._replace(max_rows=0) != ModelBatching() or section["auto_batching_timeout"]:
            return f"dynamic_batching of model {model.name} sets more than a batch size"
        if has_ragged_tensors(config):
            return f"model {model.name} has ragged batches"
        if config.get("response_cache", {}).get("enable"):
            return f"model {model.name} has a response cache"
        if limits_runs and model.run_needs:
            return f"model {model.name} has a rate_limiter"
        kinds = {group.get("kind") for group in config.get("instance_group", ())}
        if "KIND_GPU" in kinds or engine.get("devices") or engine.get("device_type"):
            return f"model {model.name} runs on a GPU"
    return ""


def build_joint_section(graph: Dag, sections: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """Build the section of config.yml for the Op that runs all steps of an ensemble.

    sections: the steps' sections, by the name of the step's Op. workers: number of workers.
    """
    requests = max(sections[op]["batch_size"] for op in graph.ops)
    return {"concurrency": workers, "batch_size": requests, "placement": "process"}
