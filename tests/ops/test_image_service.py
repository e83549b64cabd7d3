"""A service of images that nobody wrote an Op for, from its model's folder to labels over every endpoint."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http
from PIL import Image

from client.values import parse_value
from tests.support import onnx_models
from tests.support.image_files import get_recording_path, held_sideways, photo, png_that_says
from tests.support.new_services import NewService, new_service
from tests.support.service_process import HttpAnswer, ServiceProcess

NAMES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay")
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)
V1, V2 = "/v1/models/photos:predict", "/v2/models/photos/infer"
PHOTO = photo(50, 40)
JPEG, PNG, SIDEWAYS = get_recording_path(PHOTO, "JPEG"), get_recording_path(PHOTO), held_sideways(PHOTO)
TYPE = {"content-type": "image/jpeg"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewService]:
    folder = tmp_path_factory.mktemp("photos")
    model = onnx_models.bare(folder / "models", "photos")
    with new_service(
        folder, model, "photos", "--input", "image", "--labels", ",".join(NAMES), measures=True
    ) as new:
        yield new


@pytest.fixture(scope="module")
def service(photos: NewService) -> ServiceProcess:
    return photos.service


def expected(image: Image.Image) -> tuple[list[str], np.ndarray[Any, Any]]:
    """The five best names and their probabilities, by the model itself and torchvision's steps."""
    width, height = image.size
    shorter = round(32 / 0.875)
    size = (shorter, shorter * height // width) if width <= height else (shorter * width // height, shorter)
    pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR))
    top, left = (round((side - 32) / 2) for side in pixels.shape[:2])
    cut = pixels[top : top + 32, left : left + 32].astype(np.float32) / np.float32(255)
    feed = ((cut - MEAN) / STD).transpose(2, 0, 1)[None]
    session = onnxruntime.InferenceSession(onnx_models.onnx_file("photos"))
    (logits,) = session.run(["logits"], {"image": np.ascontiguousarray(feed)})[0]
    powers = np.exp(logits - logits.max())
    scores = powers / powers.sum()
    best = np.argsort(-scores)[:5]
    return [NAMES[number] for number in best], scores[best]


def check(told: dict[str, Any], image: Image.Image) -> None:
    labels, scores = expected(image)
    assert (told["label"], told["labels"]) == (labels[0], labels)
    assert told["score"] == pytest.approx(scores[0], abs=1e-5)
    assert told["scores"] == pytest.approx(scores, abs=1e-5)


def _upload(schema: dict[str, Any], encoded: str) -> tuple[str, bytes]:
    """Return the content type and the body of a form with a file for each required field."""
    head = 'content-disposition: form-data; name="{}"; filename="a.png"\r\ncontent-type: image/png\r\n\r\n'
    files = [
        b"--edge\r\n" + head.format(name).encode() + base64.b64decode(encoded) + b"\r\n"
        for name in schema["required"]
    ]
    return "multipart/form-data; boundary=edge", b"".join(files) + b"--edge--\r\n"


def predictions(answer: HttpAnswer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer
    told: list[dict[str, Any]] = answer.json["predictions"]
    return told


class TestEveryEndpoint:
    def test_the_command_that_new_printed_is_answered_with_labels(self, photos: NewService) -> None:
        (told,) = predictions(photos.ask())
        assert told["label"] in NAMES and len(told["labels"]) == len(told["scores"]) == 5

    @pytest.mark.parametrize("headers", [{"content-type": "image/png"}, {}], ids=["typed", "untyped"])
    def test_a_file_as_the_whole_body(self, service: ServiceProcess, headers: dict[str, str]) -> None:
        (told,) = predictions(service.http(V1, PNG, headers=headers))
        check(told, PHOTO)

    def test_a_file_as_the_whole_body_over_key_value(self, service: ServiceProcess) -> None:
        answer = service.http("/photos/prediction", PNG, headers={"content-type": "image/png"}).json
        values = [parse_value(text) for text in answer["value"]]
        rows = dict(zip(answer["key"], values, strict=True))
        check({name: value[0] for name, value in rows.items()}, PHOTO)

    def test_a_photo_that_was_held_sideways_is_turned(self, service: ServiceProcess) -> None:
        (told,) = predictions(service.http(V1, SIDEWAYS, headers={"content-type": "image/png"}))
        check(told, PHOTO)

    def test_base64_in_json_in_each_of_its_forms(self, service: ServiceProcess) -> None:
        text = base64.b64encode(PNG).decode()
        forms = [text, {"b64": text}, f"data:image/png;base64,{text}", "\n".join(text[:60] + text[60:])]
        told = predictions(service.http(V1, json.dumps({"instances": [{"image": f} for f in forms]})))
        assert len(told) == len(forms)
        for one in told:
            check(one, PHOTO)
        values = service.predict({"image": text})
        assert parse_value(values["label"]) == [expected(PHOTO)[0][0]]

    @pytest.mark.parametrize(("module", "port"), [(v2_http, "http_port"), (v2_grpc, "rpc_port")])
    def test_several_files_as_bytes_over_v2(self, service: ServiceProcess, module: Any, port: str) -> None:
        images = [PHOTO, photo(64, 64, seed=2), photo(33, 90, seed=3)]
        files = np.array([get_recording_path(image) for image in images], object)
        with module.InferenceServerClient(f"127.0.0.1:{getattr(service, port)}") as client:
            given = module.InferInput("image", [3], "BYTES")
            given.set_data_from_numpy(files)
            answer = client.infer("photos", [given])
        names = ("label", "score", "labels", "scores")
        for at, image in enumerate(images):
            row = {name: answer.as_numpy(name)[at] for name in names}
            row["label"], row["labels"] = row["label"].decode(), [one.decode() for one in row["labels"]]
            check(row, image)

    def test_every_example_of_its_description_is_answered(self, service: ServiceProcess) -> None:
        paths = service.http("/openapi.json").json["paths"]
        requests = 0
        for path in ("/photos/prediction", V1, V2, "/v2/models/photos/generate"):
            content = paths[path]["post"]["requestBody"]["content"]
            for media, description in content.items():
                if media == "multipart/form-data":
                    media, body = _upload(description["schema"], content["image/png"]["x-example-base64"])
                elif "x-example-base64" in description:
                    body = base64.b64decode(description["x-example-base64"])
                else:
                    body = json.dumps(description["example"]).encode()
                answer = service.http(path, body, headers={"content-type": media})
                assert answer.status == 200, answer
                requests += 1
        assert requests == 8

    def test_what_the_model_takes_and_gives_is_told_at_openapi_json(self, service: ServiceProcess) -> None:
        told = service.http("/openapi.json").json["x-models"]["photos"]
        assert told["labels"] == list(NAMES)
        assert told["inputs"]["image"]["crop"] == [32, 32]
        assert told["outputs"]["logits"]["kind"] == "classes"


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("body", "status", "told"),
        [
            (b"", 400, "no image"),
            (b"hello", 400, ", nor the bytes of an image"),
            (PNG[: len(PNG) // 2], 400, "broken"),
            (JPEG[: len(JPEG) // 2], 400, "broken"),
            (PNG[:30], 400, "no image"),
            (png_that_says(30_000, 30_000), 413, "too large"),
            (png_that_says(8_000, 8_000), 413, "8000 x 8000 pixels; 50000000 are allowed"),
            (
                get_recording_path(Image.new("RGB", (1, 40_000))),
                413,
                "which are 37 x 1480000 with a shorter side of 37",
            ),
            (png_that_says(0, 10), 400, "image"),
            (get_recording_path(PHOTO, "TIFF"), 400, "no image: send one of JPEG"),
        ],
        ids=[
            "empty",
            "text",
            "half a PNG",
            "half a JPEG",
            "a head",
            "a bomb",
            "large",
            "a line",
            "no pixels",
            "TIFF",
        ],
    )
    def test_what_is_no_image_that_can_be_decoded(
        self, service: ServiceProcess, body: bytes, status: int, told: str
    ) -> None:
        answer = service.http(V1, body, headers=TYPE)
        assert (answer.status, told in answer.json["error"]) == (status, True), answer
        assert "'image'" in answer.json["error"]
        check(*predictions(service.http(V1, PNG, headers=TYPE)), PHOTO)

    def test_one_broken_image_among_others_is_named_by_its_number(self, service: ServiceProcess) -> None:
        good, bad = (base64.b64encode(data).decode() for data in (PNG, PNG[:99]))
        answer = service.http(V1, json.dumps({"instances": [{"image": good}, {"image": bad}]}))
        assert answer.status == 400
        assert "image 1 of 'image' is a broken image" in answer.json["error"]

    @pytest.mark.parametrize("value", ["!", "a", "aGVsbG8", "[", '["', "[1]", "[[]]"])
    def test_what_is_no_base64(self, service: ServiceProcess, value: str) -> None:
        answer = service.http("/photos/prediction", json.dumps({"key": ["image"], "value": [value]}))
        assert (answer.status, answer.json["err_no"]) == (400, 5000), answer

    def test_a_missing_image(self, service: ServiceProcess) -> None:
        answer = service.http("/photos/prediction", json.dumps({"key": ["photo"], "value": ["x"]}))
        assert answer.status == 400
        assert "'image' is missing: send an image" in answer.json["err_msg"]


def test_a_service_without_images_says_so_where_one_is_sent(tmp_path: Path) -> None:
    with new_service(tmp_path, onnx_models.bare(tmp_path / "models", "flowers"), "flowers") as new:
        for path in ("/flowers/prediction", "/v1/models/flowers:predict"):
            answer = new.service.http(path, JPEG)
            assert answer.status == 400
            assert "the body is a JPEG image, no JSON" in answer.body.decode()


def test_a_model_for_one_image_at_once_answers_several_one_by_one(tmp_path: Path) -> None:
    model = onnx_models.bare(tmp_path / "models", "photos_of_one")
    images = [PHOTO, photo(64, 64, seed=2)]
    rows = [{"image": base64.b64encode(get_recording_path(image)).decode()} for image in images]
    with new_service(tmp_path, model, "one", "--input", "image", "--labels", ",".join(NAMES)) as new:
        told = predictions(new.service.http("/v1/models/one:predict", json.dumps({"instances": rows})))
        assert predictions(new.ask())
    for one, image in zip(told, images, strict=True):
        check(one, image)
