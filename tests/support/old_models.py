"""Models as the first examples of Paddle Serving have them: old programs with a file for each weight.

    bag_of_words(folder)    words (ragged, [-1, 1]), offsets in words.lod -> prediction [-1, 2]
    single_words(folder)    an exported program, not a serving model: words [-1, 1] -> [-1, 2]
    detector(folder)        boxes [-1, -1, 4], scores [-1, 1, -1] -> found [-1, 6] with found.lod

The prediction of a sequence is [the sum of its ids + 0.5, how many there are].
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.built_apart import built_apart

VOCABULARY = 64
BAG_OF_WORDS = """feed_var {{
  name: "words"
  alias_name: "words"
  is_lod_tensor: true
  feed_type: 0
  shape: -1
}}
fetch_var {{
  name: "{fetch}"
  alias_name: "prediction"
  is_lod_tensor: false
  fetch_type: 1
  shape: 2
}}
"""
DETECTOR = """feed_var {{ name: "boxes" alias_name: "boxes" feed_type: 1 shape: 4 }}
feed_var {{ name: "scores" alias_name: "scores" feed_type: 1 shape: 1 }}
fetch_var {{ name: "{fetch}" alias_name: "found" is_lod_tensor: true fetch_type: 1 shape: -1 }}
"""


def bag_of_words(folder: Path) -> Path:
    """The serving_server folder: `__model__`, the weights `table` and `bias`, the prototxt."""
    return built_apart(__file__, folder, "bag_of_words")


def single_words(folder: Path) -> Path:
    """The same without a prototxt, for words that are rows."""
    return built_apart(__file__, folder, "single_words")


def detector(folder: Path) -> Path:
    """Which boxes are left where those that overlap are taken for one: [class, score, box] each, and how many
    of them belong to each image."""
    return built_apart(__file__, folder, "detector")


def _build_detector(target: Path) -> None:
    import paddle

    paddle.enable_static()
    program, startup = paddle.static.Program(), paddle.static.Program()
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.program_guard(program, startup):
        block = program.global_block()
        boxes = paddle.static.data("boxes", [-1, -1, 4], "float32")
        scores = paddle.static.data("scores", [-1, 1, -1], "float32")
        found = block.create_var(name="found", dtype="float32")
        limits = {"score_threshold": 0.1, "nms_threshold": 0.5, "nms_eta": 1.0}
        counts = {"background_label": -1, "nms_top_k": 10, "keep_top_k": 10}
        inputs, outputs = {"BBoxes": [boxes], "Scores": [scores]}, {"Out": [found]}
        attributes = {**limits, **counts, "normalized": True}
        block.append_op(type="multiclass_nms", inputs=inputs, outputs=outputs, attrs=attributes)
        executor.run(startup)
        model = str(target / "model")
        paddle.static.save_inference_model(model, [boxes, scores], [found], executor, program=program)
        (fetch,) = paddle.static.load_inference_model(model, executor)[2]
    (target / "serving_server_conf.prototxt").write_text(DETECTOR.format(fetch=fetch.name), "utf-8")


def _build_words(target: Path) -> None:
    """Written operator by operator: Paddle 3's functions no longer make programs of the old kind."""
    import numpy as np
    import paddle

    ragged = target.name == "bag_of_words"
    paddle.enable_static()
    program, startup = paddle.static.Program(), paddle.static.Program()
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.program_guard(program, startup):
        block = program.global_block()

        def op(kind, inputs, extra=(), **attrs):  # type: ignore[no-untyped-def]
            result = block.create_var(name=f"{kind}.tmp_0", dtype="float32")
            outputs = {"Out": [result]} | {name: [block.create_var(dtype="float32")] for name in extra}
            block.append_op(type=kind, inputs=inputs, outputs=outputs, attrs=attrs)
            return result

        words = paddle.static.data("words", [-1, 1], "int64", lod_level=int(ragged))
        table = paddle.static.create_parameter([VOCABULARY, 2], "float32", "table")
        bias = paddle.static.create_parameter([2], "float32", "bias")
        rows = op("lookup_table", {"W": [table], "Ids": [words]}, padding_idx=-1)
        if ragged:
            rows = op("sequence_pool", {"X": [rows]}, ("MaxIndex",), pooltype="SUM", is_test=True)
        prediction = op("elementwise_add", {"X": [rows], "Y": [bias]}, axis=-1)
        executor.run(startup)
        scope = paddle.static.global_scope()
        values = {"table": np.stack([np.arange(VOCABULARY), np.ones(VOCABULARY)], 1), "bias": [0.5, 0.0]}
        for name, value in values.items():
            scope.find_var(name).get_tensor().set(np.asarray(value, "float32"), paddle.CPUPlace())
        work = target.with_name(f"{target.name}_exported")
        paddle.static.save_inference_model(str(work / "m"), [words], [prediction], executor, program=program)
        (fetch,) = paddle.static.load_inference_model(str(work / "m"), executor)[2]
    target.mkdir(parents=True)
    (work / "m.pdmodel").rename(target / "__model__")
    if ragged:
        (target / "serving_server_conf.prototxt").write_text(BAG_OF_WORDS.format(fetch=fetch.name), "utf-8")
    saving = paddle.static.Program()
    block = saving.global_block()
    for parameter in (table, bias):
        block.create_var(name=parameter.name, dtype=parameter.dtype, shape=parameter.shape, persistable=True)
        path = str(target / parameter.name)
        block.append_op(type="save", inputs={"X": [block.var(parameter.name)]}, attrs={"file_path": path})
    executor.run(saving)


if __name__ == "__main__":
    wanted = Path(sys.argv[1])
    (_build_detector if wanted.name == "detector" else _build_words)(wanted)
