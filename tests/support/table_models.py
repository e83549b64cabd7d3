"""A model of a table whose cells may be missing."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.onnx_graphs import Graph

LABELS = ("no", "yes")


def people_with_gaps(folder: Path) -> Path:
    """Write a classifier of `age` and `job`, and return its folder.

    Its score of "yes" is sigmoid(age / 10 - 4 + job). A missing age counts as 60. A clerk counts 2, a missing
    job -9, any other job 0.
    """
    graph = Graph()
    age, job = graph.feed("age", "float32", "N", 1), graph.feed("job", "string", "N", 1)
    age = graph.add("Where", graph.add("IsNaN", age), graph.tensor([60]), age)
    table = {"keys_strings": ["clerk", ""], "values_floats": [2.0, -9.0], "default_float": 0.0}
    jobs = graph.add("LabelEncoder", job, domain="ai.onnx.ml", **table)  # type: ignore[arg-type]
    years = graph.add("Sub", graph.add("Div", age, graph.tensor([10])), graph.tensor([4]))
    yes = graph.add("Sigmoid", graph.add("Add", years, jobs))
    scores = graph.add("Concat", graph.add("Sub", graph.tensor([1]), yes), yes, axis=1)
    graph.fetch(scores, "scores", "float32", "N", 2)
    model = folder / "people_with_gaps"
    model.mkdir(parents=True)
    (model / "model.onnx").write_bytes(graph.model({"ai.onnx.ml": 3}))
    columns = [
        {"name": "age", "feed": "age", "missing": "nan"},
        {"name": "job", "feed": "job", "type": "text"},
    ]
    described = {
        "inputs": {"row": {"kind": "table", "columns": columns}},
        "outputs": {"scores": {"kind": "classes", "activation": "none", "labels": list(LABELS)}},
    }
    (model / "serving.yml").write_text(json.dumps(described), "utf-8")
    return model
