"""Reads the description of a model that a service keeps in its own folder, and not in the model's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.models.additions import read_additions
from pipeline.models.description import INPUTS_KEY, OUTPUTS_KEY, describe
from pipeline.models.serving_model import ServingModel

LABELS_KEY = "labels"
SERVICE_KEYS = (LABELS_KEY, INPUTS_KEY, OUTPUTS_KEY)


def described_by(model: ServingModel, file: Path) -> ServingModel:
    """Return the model as a file of the service describes it. Raises ConfigError for a flaw in the file."""
    if not file.is_file():
        raise ConfigError(f"{file} is not a file: the service's description of its model is missing")
    keys = read_additions(file)
    if unknown := sorted(keys.keys() - set(SERVICE_KEYS)):
        raise ConfigError(f"{file} may have {', '.join(SERVICE_KEYS)}, and has {unknown[0]}")
    return with_service_keys(model, keys, file)


def with_service_keys(model: ServingModel, keys: Mapping[str, Any], file: Path) -> ServingModel:
    """Return the model with these keys in place of its own. file: for messages."""
    labels = tuple(keys.get(LABELS_KEY) or model.labels)
    additions = {**model.additions, **keys}
    description = describe(additions, model.feeds, model.fetches, labels, file)
    return replace(model, labels=labels, description=description, additions=additions)
