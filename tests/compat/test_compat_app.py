"""What apps read their inputs with, and the predictor in their own process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from paddle_serving_app.reader import (
    BGR2RGB,
    RGB2BGR,
    CenterCrop,
    Div,
    IMDBDataset,
    Normalize,
    Sequential,
    Transpose,
)
from pipeline.models.serving_model import ServingModel
from tests.support import old_models
from tests.support.service_process import ROOT


def test_a_sequence_of_transforms_gives_what_each_says() -> None:
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    read = Sequential(
        [CenterCrop(2), BGR2RGB(), Div(2.0), Normalize([1, 2, 3], [1, 2, 4]), Transpose((2, 0, 1))]
    )
    result = read(image)
    middle = image[1:3, 2:4, ::-1].astype("float64") / 2
    expected = ((middle - [1, 2, 3]) / [1, 2, 4]).transpose(2, 0, 1)
    assert (result.dtype, result.shape) == (np.float32, (3, 2, 2))
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert np.array_equal(RGB2BGR()(BGR2RGB()(image)), image)


def test_normalize_takes_channels_that_come_first() -> None:
    result = Normalize([1, 2, 3], [1, 2, 4], channel_first=True)(np.ones((3, 2, 2)))
    assert result[:, 0, 0].tolist() == [0.0, -0.5, -0.5]


def test_a_transform_without_opencv_names_the_extra_to_install(tmp_path: Path) -> None:
    (tmp_path / "cv2.py").write_text("raise ImportError('not built')\n", "utf-8")
    code = f"""
import sys
sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}, {str(ROOT / "compat")!r}]
import numpy
from paddle_serving_app.reader import Base64ToImage, Resize
for transform, given in ((Resize(4), numpy.zeros((2, 2, 3))), (Base64ToImage(), "AAAA")):
    try:
        transform(given)
    except ImportError as exc:
        print(exc)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("pip install './compat[vision]'") == 2


def test_words_of_a_review_have_the_ids_of_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "imdb.vocab").write_text("good\n,\nfilm\n", "utf-8")
    dataset = IMDBDataset()
    dataset.load_resource(tmp_path / "imdb.vocab")
    assert dataset.get_words_only("Good,<br />bad film ") == [0, 1, 3, 2]
    assert dataset.get_words_and_label("good film|1") == ([0, 2], [1])


def test_the_local_predictor_answers_rows_and_batches_alike(classifier: ServingModel) -> None:
    code = f"""
import numpy as np
from paddle_serving_app.local_predict import LocalPredictor
predictor = LocalPredictor()
predictor.load_model_config({str(classifier.directory)!r})
row = {{"input_ids": [1, 2], "token_type_ids": [0, 0], "attention_mask": [1, 1]}}
one = predictor.predict(feed=row, fetch=["logits"])
two = predictor.predict(feed=[row, row], fetch="logits")
rows = {{name: np.array([ids]) for name, ids in row.items()}}
batch = predictor.predict(feed=rows, fetch=["logits"], batch=True)
print(one["logits"].shape, two["logits"].shape, np.allclose(one["logits"], batch["logits"]))
for feed, fetch in (({{"input_ids": [1]}}, None), (row, ["probs"])):
    try:
        predictor.predict(feed=feed, fetch=fetch)
    except Exception as exc:
        print(exc)
"""
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}", "GLOG_minloglevel": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.stdout.splitlines() == [
        "(1, 3) (2, 3) True",
        "feed has no 'token_type_ids', only 'input_ids'",
        "fetch has 'probs'; the model has logits",
    ], done.stderr


def test_the_local_predictor_takes_offsets_and_refuses_devices_that_are_not_served(
    model_folder: Path,
) -> None:
    code = f"""
import numpy as np
from paddle_serving_app.local_predict import LocalPredictor
predictor = LocalPredictor()
predictor.load_model_config({str(old_models.bag_of_words(model_folder))!r}, thread_num=1, precision="fp32")
words = np.array([[1], [2], [3]])
feed = {{"words": words, "words.lod": [0, 1, 3]}}
fetch_map = predictor.predict(feed=feed, fetch=["prediction"], batch=True)
print(fetch_map["prediction"].tolist(), predictor.feed_names_, predictor.fetch_names_, predictor.feed_shapes_)
try:
    predictor.load_model_config({str(old_models.bag_of_words(model_folder))!r}, use_xpu=True)
except Exception as exc:
    print(exc)
predictor.load_model_config({str(old_models.bag_of_words(model_folder))!r}, precision="int8")
print(predictor.predict(feed=feed, batch=True)["prediction"].tolist())
"""
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}", "GLOG_minloglevel": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    answers, xpu, int8 = done.stdout.splitlines()
    assert answers == "[[1.5, 1.0], [5.5, 2.0]] ['words'] ['prediction'] {'words': [1]}"
    assert xpu == "use_xpu is not supported; load the model on the CPU or with use_gpu"
    assert int8 == "[[1.5, 1.0], [5.5, 2.0]]"
    assert "precision int8 is not run on the CPU" in done.stderr  # and is fp32, as there
