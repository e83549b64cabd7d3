"""A model of the benchmark of models, taken from its file to its answers; it needs the package `onnx`."""

from __future__ import annotations

from bench.models.__main__ import tried_apart
from bench.models.endpoints import ENDPOINTS
from bench.models.subjects import subject_called

STRINGS = subject_called("ONNX: strings")


def test_a_model_goes_from_its_file_to_the_right_answer_over_every_endpoint() -> None:
    finding = tried_apart(STRINGS, limit_s=120)
    assert finding.right, finding
    assert (
        finding.endpoints.keys() == ENDPOINTS.keys()
        and finding.largest is not None
        and finding.largest < 1e-5
    )
    assert finding.first_status == 200 and finding.convert_s > 0 and finding.route[-1] == "serving model"
