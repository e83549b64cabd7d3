"""A model of the benchmark of models, taken from its file to its answers; it needs the package `onnx`."""

from __future__ import annotations

from bench.models.__main__ import try_in_process
from bench.models.endpoints import ENDPOINTS
from bench.models.subjects import find_subject

STRINGS = find_subject("ONNX: strings")


def test_a_model_goes_from_its_file_to_the_right_answer_over_every_endpoint() -> None:
    finding = try_in_process(STRINGS, limit_s=120)
    assert finding.right, finding
    assert (
        finding.endpoints.keys() == ENDPOINTS.keys()
        and finding.largest is not None
        and finding.largest < 1e-5
    )
    assert finding.first_status == 200 and finding.convert_s > 0 and finding.route[-1] == "serving model"
