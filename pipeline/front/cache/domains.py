"""Domains of the response cache: the loaded models, whose responses are never mixed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import msgspec

from pipeline.api.app import ServedModel


def get_step_domain(op: str, load: int) -> bytes:
    """Return the domain of an Op's outputs. load: number of the load, so that a reload begins anew."""
    return f"step {op} {load}".encode()


def get_model_domain(model: ServedModel, loads: Sequence[int]) -> bytes:
    """Return the domain of a model's responses. loads: numbers of the loads of its Ops.

    The hash covers the graph of an ensemble, which a reload may change without its models.
    """
    description = json.dumps(msgspec.to_builtins(model))
    digest = hashlib.sha256(description.encode("utf-8", "surrogatepass")).hexdigest()
    return f"model {model.key} {digest} {list(loads)}".encode()
