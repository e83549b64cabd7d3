"""What /openapi.json tells people of each model beside its paths: who runs it, its task, its classes."""

from __future__ import annotations

from typing import Any

from pipeline.api.served_models import ServedModel
from pipeline.front.scheduler.scheduler import Scheduler


def model_cards(scheduler: Scheduler) -> dict[str, Any]:
    """A card by the model's name, in the order of `App.models`, as far as its workers have told.

    op: whose model it is by itself, empty for a DAG. ops: that its requests go through, whose instances
    /health/ready counts.
    """
    return {model.name: _card(model, scheduler) for model in scheduler.app.models if _is_asked(model, scheduler)}


def _is_asked(model: ServedModel, scheduler: Scheduler) -> bool:
    """Whether there is anything that can be asked under its name: an Op without a model has none."""
    return not model.op or scheduler.pools[model.op].signature is not None


def _card(model: ServedModel, scheduler: Scheduler) -> dict[str, Any]:
    cards = {op: card for op in model.graph.ops if (card := scheduler.pools[op].card) is not None}
    answering = cards.get(model.answering_op)
    return {
        "op": model.op,
        "ops": list(model.graph.ops),
        "version": scheduler.version(model.name),
        **({} if answering is None else answering.document()),
        "engine": "; ".join(dict.fromkeys(card.engine for card in cards.values())),
    }
