"""What /openapi.json tells people of each model beside its paths: its engine, task, inputs and outputs."""

from __future__ import annotations

from typing import Any

from pipeline.api.served_models import ServedModel
from pipeline.front.scheduler.scheduler import Scheduler


def model_cards(scheduler: Scheduler) -> dict[str, Any]:
    """A card by the model's name, in the order of `App.models`.

    op: whose model it is by itself, empty for a DAG. ops: that its requests go through, whose instances
    /health/ready counts. engine, task, labels: as far as workers have told. inputs, outputs: where
    serving.yml describes them, see `Description.document`. state, reason: of a repository's model, whose
    newest version the card is of.
    """
    return {
        model.name: _card(model, scheduler) for model in scheduler.app.models if _is_asked(model, scheduler)
    }


def _is_asked(model: ServedModel, scheduler: Scheduler) -> bool:
    """Whether anything can be asked under its name: nothing can of a script's Op without a model."""
    return not model.op or model.config is not None or scheduler.pools[model.op].signature is not None


def _card(model: ServedModel, scheduler: Scheduler) -> dict[str, Any]:
    cards = {op: card for op in model.graph.ops if (card := scheduler.pools[op].card) is not None}
    answering = cards.get(model.answering_op)
    return {
        "op": model.op,
        **_standing(model, scheduler),
        "ops": list(model.graph.ops),
        "version": scheduler.version(model.key),
        **({} if answering is None else answering.document()),
        "engine": "; ".join(dict.fromkeys(card.engine for card in cards.values())),
        **({} if model.op else _described(model, scheduler)),
    }


def _standing(model: ServedModel, scheduler: Scheduler) -> dict[str, str]:
    if model.config is None:
        return {}
    if scheduler.model_ready(model.key) and not scheduler.has_unloaded(model.key):
        return {"state": "READY"}
    failures = scheduler.start_failures
    reason = next((failures[op] for op in model.graph.ops if op in failures), "")
    return {"state": "UNAVAILABLE", "reason": reason.partition("\n")[0]}


def _described(model: ServedModel, scheduler: Scheduler) -> dict[str, Any]:
    """What the Ops that are given the request take, and what the answering Op gives."""
    graph, described = model.graph, scheduler.app.described
    takers = [graph.nodes[node].op for node in graph.consumers[graph.source]]
    if any(op not in described for op in (*takers, model.answering_op)):
        return {}
    inputs = {name: told for op in takers for name, told in described[op]["inputs"].items()}
    return {"inputs": inputs, "outputs": described[model.answering_op]["outputs"]}
