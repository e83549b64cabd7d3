"""`inputs` and `outputs` of serving.yml: what is filled in, and each mistake told with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.errors import ConfigError
from pipeline.models.description import ClassesOutput, ImageInput, TableInput, describe
from pipeline.models.serving_model import ADDITIONS, Variable, load_serving_model
from tests.support import onnx_models
from tests.support.command_line import paddlewheel

IMAGE = Variable("image", "image", "float32", (-1, 3, 32, 32))
SIZE = Variable("size", "size", "float32", (-1, 2))
WORD = Variable("word", "word", "string", (-1, 1))
SCORES = Variable("scores", "scores", "float32", (-1, 10))
PATH = Path("serving.yml")


def described(keys: dict[str, Any], *feeds: Variable, labels: tuple[str, ...] = ()) -> Any:
    return describe(keys, feeds or (IMAGE,), (SCORES,), labels, PATH)


class TestWhatIsFilledIn:
    def test_nothing_said_is_tensors(self) -> None:
        description = described({}, IMAGE, SIZE)
        assert description.as_dict() == {
            "inputs": {"image": {"kind": "tensor"}, "size": {"kind": "tensor"}},
            "outputs": {"scores": {"kind": "tensor"}},
        }

    def test_scores_for_each_label_are_classes(self) -> None:
        labels = tuple(map(str, range(10)))
        assert described({}, labels=labels).outputs == {"scores": ClassesOutput(raw=True)}
        assert described({}, labels=labels[1:]).outputs["scores"].kind == "tensor"

    @pytest.mark.parametrize(
        ("shape", "expected"),
        [
            ((-1, 3, 32, 32), ([37], [32, 32], "nchw", "rgb")),
            ((-1, 299, 299, 3), ([342], [299, 299], "nhwc", "rgb")),
            ((-1, 3, -1, -1), ([256], [224, 224], "nchw", "rgb")),
            ((-1, 1, 64, 48), ([55], [64, 48], "nchw", "grey")),
        ],
    )
    def test_of_an_image_what_its_feed_tells(self, shape: tuple[int, ...], expected: Any) -> None:
        feed = Variable("x", "x", "float32", shape)
        image = described({"inputs": {"photo": {"kind": "image", "mean": 0, "std": 1}}}, feed).inputs["photo"]
        assert isinstance(image, ImageInput)
        assert (image.resize, image.crop, image.layout, image.channels) == expected
        assert (image.feed, image.library) == ("x", "pillow")

    def test_a_feed_that_no_input_names_is_a_tensor_beside_it(self) -> None:
        inputs = described({"inputs": {"photo": {"kind": "image", "feed": "image"}}}, IMAGE, SIZE).inputs
        assert {name: given.kind for name, given in inputs.items()} == {"photo": "image", "size": "tensor"}

    def test_the_columns_of_a_table_are_its_only_feed_s(self) -> None:
        table = {"kind": "table", "columns": [{"name": "a"}, {"name": "b"}]}
        rows = described({"inputs": {"row": table}}, SIZE).inputs["row"]
        assert isinstance(rows, TableInput)
        assert [column.feed for column in rows.columns] == ["size", "size"]


TABLE = {"kind": "table", "columns": [{"name": "a"}, {"name": "b"}]}
FLAWS: list[tuple[dict[str, Any], tuple[Variable, ...], str]] = [
    ({"inputs": []}, (IMAGE,), "serving.yml: inputs is not a mapping of names"),
    (
        {"inputs": {"a": {"kind": "sound"}}},
        (IMAGE,),
        "inputs.a: kind is 'sound'; allowed: image, text, table",
    ),
    ({"inputs": {"a": {}}}, (IMAGE,), "inputs.a: kind is None"),
    (
        {"inputs": {"a": {"kind": "image", "reseize": 3}}},
        (IMAGE,),
        "reseize: unknown key; did you mean resize?",
    ),
    (
        {"inputs": {"a": {"kind": "image", "preset": "x"}}},
        (IMAGE,),
        "preset: 'x' given; allowed: 'torchvision'",
    ),
    ({"inputs": {"a": {"kind": "image", "crop": 0}}}, (IMAGE,), "crop"),
    ({"inputs": {"a": {"kind": "image", "feed": "x"}}}, (IMAGE,), "the model has no feed 'x', only image"),
    ({"inputs": {"a": {"kind": "image"}}}, (SIZE,), r"size takes float32 \[-1, 2\]"),
    ({"inputs": {"a": {"kind": "image"}}}, (IMAGE, SIZE), "the feeds image, size; say which by `feed`"),
    ({"inputs": {"a": {"kind": "image", "mean": [1, 2]}}}, (IMAGE,), "a.mean: 2 numbers for 3 channels"),
    ({"inputs": {"a": {"kind": "image", "std": 0}}}, (IMAGE,), "a.std: nothing can be divided by 0"),
    ({"inputs": {"a": {"kind": "image", "channels": "grey"}}}, (IMAGE,), "grey has 1 channels, image takes"),
    (
        {"inputs": {"a": {"kind": "image", "library": "opencv", "resampling": "bicubic"}}},
        (IMAGE,),
        "library: opencv goes with resampling: bilinear alone",
    ),
    (
        {"inputs": {"a": {"kind": "image"}}},
        (Variable("x", "x", "float32", (-1, -1, -1, -1)),),
        "set layout to nchw or nhwc",
    ),
    ({"inputs": {"image": {"kind": "image", "feed": "x"}}}, (IMAGE,), "has no feed 'x'"),
    (
        {"inputs": {"size": {"kind": "image", "feed": "image"}}},
        (IMAGE, SIZE),
        "inputs.size: the model has another feed of this name",
    ),
    ({"inputs": {"a": {"kind": "text"}}}, (IMAGE,), "no feed 'input_ids'"),
    ({"inputs": {"a": {"kind": "text", "feed": "image"}}}, (IMAGE,), "image takes float32, not string"),
    ({"inputs": {"a": TABLE}}, (WORD,), r"2 columns are for feed word, which takes \[-1, 1\]"),
    (
        {"inputs": {"a": {"kind": "table", "columns": [{"name": "a"}]}}},
        (WORD,),
        "'a' is number, but feed word takes string",
    ),
    ({"inputs": {"a": {"kind": "table", "columns": []}}}, (SIZE,), "columns"),
    (
        {"inputs": {"a": {"kind": "table", "columns": [{"name": "a"}, {"name": "a"}]}}},
        (SIZE,),
        "a.columns: a stands there twice",
    ),
    (
        {"inputs": {"a": {"kind": "table", "feed": "size", "columns": [{"name": "image"}, {"name": "b"}]}}},
        (IMAGE, SIZE),
        "inputs: image stands there twice",
    ),
    (
        {"inputs": {"a": {"kind": "table", "columns": [{"name": "n", "type": "integer", "missing": "nan"}]}}},
        (Variable("n", "n", "int64", (-1, 1)),),
        "'n' has missing: nan, but feed n takes int64",
    ),
    ({"outputs": {"y": {"kind": "classes"}}}, (IMAGE,), "outputs.y: the model has only scores"),
    (
        {"outputs": {"scores": {"kind": "classes", "labels": ["a", "b"]}}},
        (IMAGE,),
        "there are 2 labels for 10 classes",
    ),
    ({"outputs": {"scores": {"kind": "classes", "chosen": "y"}}}, (IMAGE,), "the model has no fetch 'y'"),
    ({"outputs": {"scores": {"kind": "classes", "top_k": 0}}}, (IMAGE,), "top_k: 0 given"),
]


@pytest.mark.parametrize(("keys", "feeds", "told"), FLAWS, ids=[told[:40] for _, _, told in FLAWS])
def test_a_mistake_is_told_with_file_and_key(
    keys: dict[str, Any], feeds: tuple[Variable, ...], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        described(keys, *feeds)
    assert refused.value.message.startswith("serving.yml: ")


def test_all_mistakes_are_told_at_once() -> None:
    inputs = {"a": {"kind": "image", "preset": "x", "layout": "y"}, "b": {"kind": "z"}}
    with pytest.raises(ConfigError) as refused:
        described({"inputs": inputs})
    assert len(refused.value.message.splitlines()) == 3


class TestWhatNewWrites:
    def test_it_stands_beside_the_script_and_the_model_s_serving_yml_stays(self, tmp_path: Path) -> None:
        model = onnx_models.serving(tmp_path)
        path = model / "serving_server" / ADDITIONS
        before = path.read_bytes()
        (model / "serving_server" / "vocab.txt").write_text("[PAD]\n[UNK]", "utf-8")
        done = paddlewheel("new", "app", "--model", str(model), "--input", "text", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"{Path('app', ADDITIONS)} says so; edit it there" in done.stdout
        assert "v1/models/app:predict" in done.stdout
        own = yaml.safe_load((tmp_path / "app" / ADDITIONS).read_text("utf-8"))
        assert own["inputs"] == {"text": {"kind": "text"}}
        assert own["outputs"] == {"logits": {"kind": "classes"}}
        assert path.read_bytes() == before
        again = paddlewheel("new", "other", "--model", str(model), cwd=tmp_path)
        assert "/other/prediction" in again.stdout and "says so" not in again.stdout, again
        assert not (tmp_path / "other" / ADDITIONS).exists()
        assert path.read_bytes() == before

    @pytest.mark.parametrize(
        ("model", "options", "told"),
        [
            ("classifier", ("--input", "text"), "has no tokenizer.json or vocab.txt"),
            ("classifier", ("--input", "image"), "a model with one feed [N,C,H,W]"),
            ("photos", ("--input", "text"), "no feed 'input_ids'"),
            ("flowers", ("--input", "table"), "takes 4 columns, name them: --columns a,b,c"),
            ("flowers", ("--input", "table", "--columns", "a,b"), "takes 4 columns, 2 are named"),
            ("photos", ("--labels", "a,b,c"), "--labels has 3 names, and the model has 10 classes"),
            ("photos", ("--preset", "timm"), "--preset goes with --input image"),
            ("photos", ("--input", "image", "--resize", "big"), "is no side like 256"),
            ("series", ("--output", "tokens"), "kind tokens is for [N, tokens, classes]; mean gives [-1, 6]"),
            ("words", ("--output", "multilabel", "--labels", "a,b"), "the model has 3 classes"),
            ("photos_of_four", ("--input", "image"), "takes 4 rows at once"),
        ],
    )
    def test_options_that_do_not_fit_the_model_are_refused_and_nothing_is_written(
        self, tmp_path: Path, model: str, options: tuple[str, ...], told: str
    ) -> None:
        folder = onnx_models.bare(tmp_path / "models", model)
        done = paddlewheel("new", "app", "--model", str(folder), *options, cwd=tmp_path)
        assert done.returncode == 2 and told in done.stderr, done
        assert "Traceback" not in done.stderr
        assert not (folder / ADDITIONS).exists() and not (tmp_path / "app").exists()

    def test_what_stands_in_serving_yml_is_not_overwritten(self, tmp_path: Path) -> None:
        folder = onnx_models.bare(tmp_path / "models", "photos")
        text = "inputs:\n  photo: {kind: image, preset: plain}  # mine\n"
        (folder / ADDITIONS).write_text(text, "utf-8")
        done = paddlewheel("new", "app", "--model", str(folder), "--input", "image", cwd=tmp_path)
        assert done.returncode == 2 and "has inputs already" in done.stderr
        assert (folder / ADDITIONS).read_text("utf-8") == text
        assert load_serving_model(folder).description.inputs["photo"].kind == "image"
