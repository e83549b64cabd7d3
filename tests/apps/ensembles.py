"""The models of a script, and beside them ensembles of the same Ops, made by hand as a repository would."""

import os
from dataclasses import replace

from pipeline import Op, WebService
from pipeline.api.app import ServedModel, collect_models
from pipeline.api.dag import Dag, Edge, Node
from pipeline.models.tensor_spec import Signature, TensorSpec

REQUEST = "@request"
ROWS, STATE = (-1, 4), (2, -1, 4)
MEMORY = {"memory": "state", "part": "rate"}

TWICE = ServedModel(
    "twice",
    Dag(
        (
            Node("once", "scale", (Edge(REQUEST, {"raw": "x"}),)),
            Node("again", "scale", (Edge("once", {"y": "x"}),)),
        ),
        "again",
        source=REQUEST,
        answer={"y": "huge"},
    ),
    Signature((TensorSpec("raw", "FP32", ROWS),), (TensorSpec("huge", "FP32", ROWS),), 0),
)
# The steps of one ensemble stand in the other, whose last step takes tensors of two.
REMEMBERED = ServedModel(
    "remembered",
    Dag(
        (
            *TWICE.graph.nodes.values(),
            Node("add", "remember", (Edge("again", {"y": "x"}), Edge(REQUEST, MEMORY))),
        ),
        "add",
        source=REQUEST,
        answer={"next": "memory", "y": "sum"},
    ),
    Signature(
        (
            TensorSpec("raw", "FP32", ROWS),
            TensorSpec("memory", "FP32", STATE),
            TensorSpec("part", "FP32", ()),
        ),
        (TensorSpec("memory", "FP32", STATE), TensorSpec("sum", "FP32", ROWS)),
        0,
    ),
)


class Beside:
    """The models of another source, with both ensembles."""

    def __init__(self, models):
        self._models = models

    def models(self):
        return [*self._models, TWICE, REMEMBERED]


class Ensembles(WebService):
    def get_pipeline_response(self, read_op):
        return Op("remember", input_ops=[Op("scale", input_ops=[read_op])])

    def as_app(self):
        app = super().as_app()
        return replace(app, models=collect_models(Beside(app.models)))


if __name__ == "__main__":
    service = Ensembles(name="test")
    service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
    service.run_service()
