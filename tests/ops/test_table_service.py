"""A service of rows of a table that nobody wrote an Op for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.http as v2

from client.values import parse_value
from tests.support import onnx_models
from tests.support.new_services import NewService, new_service
from tests.support.service_process import HttpAnswer, ServiceProcess

PATH = "/v1/models/people:predict"
ROWS = [
    {"age": 20, "hours": 40.5, "job": "clerk"},
    {"age": 61, "hours": 10, "job": "nurse"},
    {"age": 33.5, "hours": 0, "job": "poet"},
]
CSV = 'job,age,hours,remark\nclerk,20,40.5,\nnurse, 61 ,10,"a, b"\n\npoet,33.5,0,x\n'
LABELS = ("no", "yes")


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewService]:
    folder = tmp_path_factory.mktemp("people")
    model = onnx_models.bare(folder / "models", "people")
    with new_service(folder, model, "people", "--input", "table", "--labels", ",".join(LABELS)) as new:
        yield new


@pytest.fixture(scope="module")
def service(people: NewService) -> ServiceProcess:
    return people.service


def expected() -> list[dict[str, Any]]:
    """What the model itself gives for the rows."""
    session = onnxruntime.InferenceSession(onnx_models.onnx_file("people"))
    feed = {name: np.array([[row[name]] for row in ROWS], np.float32) for name in ("age", "hours")}
    feed["job"] = np.array([[row["job"]] for row in ROWS], object)
    (scores,) = session.run(None, feed)
    return [{"label": LABELS[row.argmax()], "score": pytest.approx(row.max(), abs=1e-6)} for row in scores]


def predictions(answer: HttpAnswer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer
    told: list[dict[str, Any]] = answer.json["predictions"]
    return told


def csv(service: ServiceProcess, text: str | bytes) -> HttpAnswer:
    return service.http(PATH, text, headers={"content-type": "text/csv; charset=utf-8"})


class TestEveryEndpoint:
    def test_rows_as_objects_by_the_names_of_the_columns(self, service: ServiceProcess) -> None:
        assert predictions(service.http(PATH, json.dumps({"instances": ROWS}))) == expected()

    def test_rows_as_lists_in_the_order_of_the_columns(self, service: ServiceProcess) -> None:
        rows = [list(row.values()) for row in ROWS]
        assert predictions(service.http(PATH, json.dumps({"instances": rows}))) == expected()
        # A large body is decoded without its rows of over 256 bytes.
        rows = [[*row[:2], "poet" * 100] for row in rows] * 300
        assert len(predictions(service.http(PATH, json.dumps({"instances": rows})))) == 900

    def test_columns_as_lists(self, service: ServiceProcess) -> None:
        columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
        answer = service.http(PATH, json.dumps({"inputs": columns})).json["outputs"]
        assert answer["label"] == [row["label"] for row in expected()]

    @pytest.mark.parametrize("ending", ["\n", "\r\n"])
    @pytest.mark.parametrize("mark", ["", "\ufeff"])
    def test_csv_with_columns_in_any_order_and_others_beside_them(
        self, service: ServiceProcess, ending: str, mark: str
    ) -> None:
        assert predictions(csv(service, mark + CSV.replace("\n", ending))) == expected()

    def test_csv_over_key_value(self, service: ServiceProcess) -> None:
        answer = service.http("/people/prediction", CSV, headers={"content-type": "text/csv"}).json
        (label, _) = map(parse_value, answer["value"])
        assert label == [row["label"] for row in expected()]

    def test_texts_and_lists_of_them_over_key_value(self, service: ServiceProcess) -> None:
        one = service.predict({name: str(value) for name, value in ROWS[0].items()})
        assert parse_value(one["label"]) == [expected()[0]["label"]]
        columns = {name: json.dumps([row[name] for row in ROWS]) for name in ROWS[0]}
        assert parse_value(service.predict(columns)["label"]) == [row["label"] for row in expected()]

    def test_a_tensor_for_each_column_over_v2(self, service: ServiceProcess) -> None:
        with v2.InferenceServerClient(f"127.0.0.1:{service.http_port}") as client:
            inputs = []
            for name in ROWS[0]:
                kind, dtype = ("BYTES", object) if name == "job" else ("FP32", np.float32)
                array = np.array([row[name] for row in ROWS], dtype)
                inputs.append(v2.InferInput(name, array.shape, kind))
                inputs[-1].set_data_from_numpy(array)
            labels = client.infer("people", inputs).as_numpy("label")
        assert [label.decode() for label in labels] == [row["label"] for row in expected()]

    def test_its_csv_example_is_answered(self, service: ServiceProcess) -> None:
        content = service.http("/openapi.json").json["paths"][PATH]["post"]["requestBody"]["content"]
        assert len(predictions(csv(service, content["text/csv"]["example"]))) == 1


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("", "the first line of the CSV names no column 'age'"),
            ("age,hours,job\n", "the CSV has no row"),
            ("age,hours\n1,2\n", "names no column 'job'; it has age, hours"),
            ("age,age,hours,job\n1,2,3,a\n", "names two columns 'age'"),
            ("age,hours,job\n1,2\n", "line 2 of the CSV has 2 cells, its first line 3"),
            ("age,hours,job\n1,2,a\nx,2,a\n", "row 1: column 'age' is 'x', which is no number"),
            ("age,hours,job\n,2,a\n", "row 0: column 'age' is empty"),
            ("age,hours,job\nnan,2,a\n", "row 0: column 'age' is no number (NaN)"),
            ("age,hours,job\n1e300,2,a\n", "row 0: column 'age' is 1e300, beyond what a model takes"),
            ('age,hours,job\n1,2,"a\n', "can't be read"),
            ("age,hours,job\n1,2," + "a" * 200_000, "can't be read"),
            (b"age,hours,job\n1,2,\xff\n", "the CSV is no UTF-8"),
            ("age,hours,job\n" + "1,2,a\n" * 100_001, "over 100000 rows"),
        ],
        ids=lambda value: value[:30] if isinstance(value, str) else "",
    )
    def test_csv_that_is_none_or_has_other_cells(
        self, service: ServiceProcess, text: str | bytes, told: str
    ) -> None:
        answer = csv(service, text)
        assert answer.status in (400, 413) and told in answer.json["error"], answer

    @pytest.mark.parametrize(
        ("row", "told"),
        [
            ({"age": 1, "hours": 2}, "lacks the field 'job'"),
            ({"age": "x", "hours": 2, "job": "a"}, "field 'age' holds"),
            ({"age": None, "hours": 2, "job": "a"}, "field 'age' holds null"),
            ({"age": 1, "hours": 2, "job": 3}, "field 'job' holds"),
            ([1, 2], "instance 0 has 2 values; a row has, in order, age, hours, job"),
            ([1, 2, "a", 3], "instance 0 has 4 values"),
            (["a", 2, 1], "instance 0, field 'age' holds text"),
        ],
    )
    def test_rows_that_do_not_fit(self, service: ServiceProcess, row: Any, told: str) -> None:
        answer = service.http(PATH, json.dumps({"instances": [row]}))
        assert answer.status == 400 and told in answer.json["error"], answer

    @pytest.mark.parametrize(
        ("values", "told"),
        [
            ({"age": "1"}, "column 'hours' is missing; a row has the columns age, hours, job"),
            ({"age": "[1, 2]", "hours": "2", "job": "a"}, "unequal numbers of rows: age 2, hours 1, job 1"),
            ({"age": "[", "hours": "2", "job": "a"}, "column 'age' is no list of values in JSON"),
            ({"age": "[]", "hours": "[]", "job": "[]"}, "unequal numbers of rows"),
            ({"age": "[[1]]", "hours": "1", "job": "a"}, "row 0: column 'age' is '[1]'"),
            ({"csv": "age,hours,job\n1,2,a\n"}, "column 'age' is missing"),
        ],
    )
    def test_values_that_do_not_fit(self, service: ServiceProcess, values: dict[str, str], told: str) -> None:
        answer = service.ask(values)
        assert answer["err_no"] == 5000 and told in answer["err_msg"], answer


KINDS = {
    "half": "number",
    "double": "number",
    **dict.fromkeys(("int64", "int32", "int16", "int8", "uint8", "flag"), "integer"),
    "text": "text",
}
"""The feeds of a model, two columns each, and what these hold. A column of texts is called csv."""


@pytest.fixture(scope="module")
def every_dtype(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("dtypes")
    model = onnx_models.bare(folder / "models", "dtypes")
    columns = [{"name": name, "type": KINDS[feed], "feed": feed} for name, feed in columns_of_dtypes()]
    described = {"inputs": {"row": {"kind": "table", "columns": columns}}}
    (model / "serving.yml").write_text(json.dumps(described), "utf-8")
    with new_service(folder, model, "dtypes") as new:
        yield new.service


def columns_of_dtypes() -> Iterator[tuple[str, str]]:
    for feed in KINDS:
        yield "csv" if feed == "text" else f"{feed}_0", feed
        yield f"{feed}_1", feed


def row_of_dtypes(**cells: Any) -> dict[str, Any]:
    return {name: "a" if feed == "text" else 1 for name, feed in columns_of_dtypes()} | cells


def test_a_column_may_be_called_as_the_body_of_csv_is(every_dtype: ServiceProcess) -> None:
    row = row_of_dtypes(csv="b", int32_0=-7)
    lines = "\n".join(",".join(map(str, line)) for line in (row, row.values()))
    path = "/v1/models/dtypes:predict"
    for answer in (
        every_dtype.http(path, json.dumps({"instances": [row]})),
        every_dtype.http(path, lines, headers={"content-type": "text/csv"}),
    ):
        (told,) = predictions(answer)
        assert told["text_out"] == ["b", "a"] and told["int32_out"] == [-7, 1]
        assert told["flag_out"] == [True, True]
    texts = {name: str(cell) for name, cell in row.items()}
    assert parse_value(every_dtype.predict(texts)["text_out"]) == [["b", "a"]]


@pytest.mark.parametrize(
    ("column", "cell", "told"),
    [
        ("int32_0", str(1 << 31), "beyond what a model takes"),
        ("int16_1", "-40000", "beyond what a model takes"),
        ("int8_0", "128", "beyond what a model takes"),
        ("uint8_0", "-1", "beyond what a model takes"),
        ("int64_0", "9" * 400, "beyond what a model takes"),
        ("half_0", "70000", "beyond what a model takes"),
        ("int8_1", "1.5", "which is no integer"),
    ],
)
def test_a_number_that_its_feed_does_not_hold_is_refused(
    every_dtype: ServiceProcess, column: str, cell: str, told: str
) -> None:
    answer = every_dtype.ask({name: str(one) for name, one in row_of_dtypes(**{column: cell}).items()})
    assert answer["err_no"] == 5000, answer
    assert f"row 0: column {column!r} is" in answer["err_msg"] and told in answer["err_msg"]


def test_cells_that_may_be_missing_are_no_numbers_to_the_model(tmp_path: Path) -> None:
    model = onnx_models.bare(tmp_path / "models", "logarithm")
    columns = [{"name": name, "missing": "nan"} for name in "abcd"]
    described = {"inputs": {"row": {"kind": "table", "columns": columns}}}
    (model / "serving.yml").write_text(json.dumps(described), "utf-8")
    with new_service(tmp_path, model, "gaps") as new:
        answer = new.service.http(
            "/v1/models/gaps:predict", "a,b,c,d\n1,,1,1\n", headers={"content-type": "text/csv"}
        )
    assert predictions(answer) == [{"y": [0.0, None, 0.0, 0.0]}]
