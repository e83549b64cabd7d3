"""Tiny real models for tests, each a serving model directory built once per folder.

Paddle runs in a child process, so a test that only serves a model never imports it:

    classifier(folder)      input_ids, token_type_ids, attention_mask [-1, -1] -> logits [-1, 3]; padding safe
    classifier_pdmodel(..)  the same arithmetic as an old .pdmodel program (no token_type_ids)
    wide_pdmodel(folder)    x [-1, 1024] -> logits [-1, 3], by 12 MB of weights; a .pdmodel program
    images(folder)          image [-1, 3, -1, -1] -> doubled [-1, 3, -1, -1], nothing may be padded
    enlarged(folder)        image [-1, 3, -1, -1] -> each pixel as four [-1, 3, -1, -1]
    pooled(folder)          image [-1, 1, -1, -1] -> logits [-1, 3]: the means of three parts of its width
    pooled_pdmodel(folder)  the same arithmetic as an old .pdmodel program
    centred(folder)         x [1, 4] less its mean -> y [1, 4]: of two rows each would have the mean of both
    linear(folder)          x [-1, 13] -> y [-1, 1], its sum
    frames(folder)          frames [-1, -1, 3, 2, 2] -> brightness [-1, 1], of a frame each
    hidden_states(..)       input_ids [-1, 128] -> hidden [-1, 128, 768]

Weights come from a fixed seed. The classifier's answer for a row does not depend on its padding or its batch.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.config.config_file import LocalServiceConf

VOCABULARY, WIDE = 64, 1024
LABELS = ("sports", "finance", "tech")


def classifier(folder: Path) -> Path:
    """The masked mean of embeddings, then a linear layer; a Paddle 3 .json program."""
    return built(folder, "classifier")


def classifier_pdmodel(folder: Path) -> Path:
    """Inputs input_ids and attention_mask; a .pdmodel program."""
    return built(folder, "classifier_pdmodel")


def wide_pdmodel(folder: Path) -> Path:
    """So large that a CPU with bf16 runs it in less time so."""
    return built(folder, "wide_pdmodel")


def images(folder: Path) -> Path:
    """Each pixel times two plus its channel's number."""
    return built(folder, "images")


def enlarged(folder: Path) -> Path:
    """Has an operator that oneDNN lacks."""
    return built(folder, "enlarged")


def pooled(folder: Path) -> Path:
    """Has an operator whose oneDNN kernel is wrong after runs of other sizes."""
    return built(folder, "pooled")


def pooled_pdmodel(folder: Path) -> Path:
    """Likewise, as a .pdmodel program."""
    return built(folder, "pooled_pdmodel")


def centred(folder: Path) -> Path:
    """Exported for batches of one alone."""
    return built(folder, "centred")


def linear(folder: Path) -> Path:
    """As the house prices of Paddle's first example."""
    return built(folder, "linear")


def frames(folder: Path) -> Path:
    """A video model, which makes of a batch of videos a batch of frames."""
    return built(folder, "frames")


def hidden_states(folder: Path) -> Path:
    """128 x 768 floats a row, 393 KB."""
    return built(folder, "hidden_states")


def local_conf(**keys: Any) -> LocalServiceConf:
    """local_service_conf with these keys, for a predictor of one thread."""
    from pipeline.config.config_file import LocalServiceConf

    return LocalServiceConf(**({"model_config": "unused", "thread_num": 1} | keys))


def built(folder: Path, kind: str, script: str = __file__) -> Path:
    """The model of this kind in the folder, built by `script` in a process of its own."""
    target = folder / kind
    if not target.exists():
        root = Path(__file__).parents[2]
        env = os.environ | {"PYTHONPATH": str(root), "GLOG_minloglevel": "2"}
        if kind.endswith("_pdmodel"):
            env["FLAGS_enable_pir_api"] = "0"  # read when Paddle is imported
        command = [sys.executable, "-W", "ignore", script, kind, str(target)]
        done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"building {kind} failed:\n{done.stderr[-4000:]}")
    return target


def _build_classifier(target: Path) -> None:
    import paddle

    class Classifier(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.words = paddle.nn.Embedding(VOCABULARY, 16)
            self.types = paddle.nn.Embedding(2, 16)
            self.output = paddle.nn.Linear(16, len(LABELS))

        def forward(self, input_ids, token_type_ids, attention_mask):  # type: ignore[no-untyped-def]
            mask = attention_mask.astype("float32").unsqueeze(-1)
            states = (self.words(input_ids) + self.types(token_type_ids)) * mask
            return self.output(states.sum(1) / mask.sum(1).clip(min=1.0))

    names = ("input_ids", "token_type_ids", "attention_mask")
    save(
        Classifier(),
        target,
        feeds=dict.fromkeys(names, ("int64", (-1, -1))),
        fetch=("logits", (-1, len(LABELS))),
        padded=names,
        labels=LABELS,
    )


def _build_images(target: Path) -> None:
    import paddle

    class Images(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.bias = self.create_parameter([1, 3, 1, 1])
            self.bias.set_value(paddle.arange(3, dtype="float32").reshape([1, 3, 1, 1]))

        def forward(self, image):  # type: ignore[no-untyped-def]
            return image * 2.0 + self.bias

    shape = (-1, 3, -1, -1)
    save(Images(), target, feeds={"image": ("float32", shape)}, fetch=("doubled", shape))


def _build_enlarged(target: Path) -> None:
    import paddle

    class Enlarged(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.bias = self.create_parameter([1], is_bias=True)  # zero

        def forward(self, image):  # type: ignore[no-untyped-def]
            return paddle.nn.functional.interpolate(image + self.bias, scale_factor=2, mode="nearest")

    shape = (-1, 3, -1, -1)
    save(Enlarged(), target, feeds={"image": ("float32", shape)}, fetch=("enlarged", shape))


def _build_pooled(target: Path) -> None:
    import paddle

    class Pooled(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.bias = self.create_parameter([1], is_bias=True)  # zero

        def forward(self, image):  # type: ignore[no-untyped-def]
            return paddle.nn.functional.adaptive_avg_pool2d(image + self.bias, [1, 3]).flatten(1)

    save(Pooled(), target, feeds={"image": ("float32", (-1, 1, -1, -1))}, fetch=("logits", (-1, 3)))


def _build_centred(target: Path) -> None:
    import paddle

    class Centred(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.bias = self.create_parameter([1], is_bias=True)  # zero

        def forward(self, x):  # type: ignore[no-untyped-def]
            return x - x.mean() + self.bias

    save(Centred(), target, feeds={"x": ("float32", (1, 4))}, fetch=("y", (1, 4)))


def _build_linear(target: Path) -> None:
    import paddle

    layer = paddle.nn.Linear(13, 1)
    layer.weight.set_value(paddle.ones([13, 1]))
    save(layer, target, feeds={"x": ("float32", (-1, 13))}, fetch=("y", (-1, 1)))


def _build_frames(target: Path) -> None:
    import paddle

    class Frames(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.bias = self.create_parameter([1], is_bias=True)  # zero

        def forward(self, frames):  # type: ignore[no-untyped-def]
            return frames.reshape([-1, 3, 2, 2]).sum([1, 2, 3]).unsqueeze(-1) + self.bias

    feeds = {"frames": ("float32", (-1, -1, 3, 2, 2))}
    save(Frames(), target, feeds=feeds, fetch=("brightness", (-1, 1)))


def _build_hidden_states(target: Path) -> None:
    import paddle

    class HiddenStates(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.words = paddle.nn.Embedding(VOCABULARY, 768)

        def forward(self, input_ids):  # type: ignore[no-untyped-def]
            return paddle.tanh(self.words(input_ids))

    save(
        HiddenStates(),
        target,
        feeds={"input_ids": ("int64", (-1, 128))},
        fetch=("hidden", (-1, 128, 768)),
    )


def save(layer, target, *, feeds, fetch, padded=(), labels=()):  # type: ignore[no-untyped-def]
    """Save the layer and wrap it; PIR programs call their only output fetch_name_0."""
    import tempfile

    import paddle

    from pipeline.models.serving_model import FeedPadding, Padding, Variable, write_serving_model

    layer.eval()
    specs = [paddle.static.InputSpec(shape, dtype, name) for name, (dtype, shape) in feeds.items()]
    with tempfile.TemporaryDirectory() as work:
        paddle.jit.save(paddle.jit.to_static(layer, input_spec=specs), f"{work}/inference")
        write_serving_model(
            target,
            Path(work, "inference.json"),
            Path(work, "inference.pdiparams"),
            [Variable(name, name, dtype, shape) for name, (dtype, shape) in feeds.items()],
            [Variable("fetch_name_0", fetch[0], "float32", fetch[1])],
            padding=Padding({name: FeedPadding(1) for name in padded}, {}) if padded else None,
            labels=labels,
        )


def _build_classifier_pdmodel(target: Path) -> None:
    import paddle

    with _old_program() as op:
        ids = paddle.static.data("input_ids", [-1, -1], "int64")
        mask = paddle.static.data("attention_mask", [-1, -1], "int64")
        words = paddle.static.create_parameter([VOCABULARY, 16], "float32", "words")
        weight = paddle.static.create_parameter([16, len(LABELS)], "float32", "weight")
        states = op("lookup_table_v2", {"W": words, "Ids": ids}, padding_idx=-1)
        kept = op("cast", {"X": mask}, in_dtype=int(mask.dtype), out_dtype=int(states.dtype))
        column = op("unsqueeze2", {"X": kept}, axes=[2], extra=("XShape",))
        masked = op("elementwise_mul", {"X": states, "Y": column}, axis=-1)
        total = op("reduce_sum", {"X": masked}, dim=[1], keep_dim=False, reduce_all=False)
        count = op("reduce_sum", {"X": column}, dim=[1], keep_dim=False, reduce_all=False)
        mean = op("elementwise_div", {"X": total, "Y": count}, axis=-1)
        logits = op("matmul_v2", {"X": mean, "Y": weight}, trans_x=False, trans_y=False)
        _save_old(target, [ids, mask], logits, padded=("input_ids", "attention_mask"))


def _build_pooled_pdmodel(target: Path) -> None:
    import paddle

    with _old_program() as op:
        image = paddle.static.data("image", [-1, 1, -1, -1], "float32")
        bias = paddle.static.create_parameter([1], "float32", "bias", is_bias=True)  # zero
        states = op("elementwise_add", {"X": image, "Y": bias}, axis=-1)
        parts = op(
            "pool2d", {"X": states}, pooling_type="avg", ksize=[1, 3], adaptive=True, global_pooling=False,
            strides=[1, 1], paddings=[0, 0], exclusive=True, ceil_mode=False, data_format="NCHW",
            padding_algorithm="EXPLICIT",
        )  # fmt: skip
        _save_old(target, [image], op("squeeze2", {"X": parts}, axes=[1, 2], extra=("XShape",)))


def _build_wide_pdmodel(target: Path) -> None:
    import paddle

    with _old_program() as op:
        x = state = paddle.static.data("x", [-1, WIDE], "float32")
        for number, columns in enumerate((WIDE, WIDE, WIDE, len(LABELS))):
            weight = paddle.static.create_parameter([WIDE, columns], "float32", f"weight_{number}")
            state = op("matmul_v2", {"X": state, "Y": weight}, trans_x=False, trans_y=False)
            state = op("relu", {"X": state}) if columns == WIDE else state
        _save_old(target, [x], state)


@contextlib.contextmanager
def _old_program():  # type: ignore[no-untyped-def]
    """A program of the old kind, to be written operator by operator: Paddle 3's functions make none any more.

    Gives the function that adds an operator and returns its output.
    """
    import paddle

    paddle.enable_static()
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        block = program.global_block()

        def op(kind, inputs, out="Out", dtype="float32", extra=(), **attrs):  # type: ignore[no-untyped-def]
            result = block.create_var(name=f"{kind}_{len(block.ops)}.tmp_0", dtype=dtype)
            outputs = {out: [result]} | {name: [block.create_var(dtype=dtype)] for name in extra}
            block.append_op(
                type=kind, inputs={k: [v] for k, v in inputs.items()}, outputs=outputs, attrs=attrs
            )
            return result

        yield op


def _save_old(target, feeds, logits, padded=()):  # type: ignore[no-untyped-def]
    """Save the program that is being written, with random weights, and wrap it."""
    import tempfile

    import paddle

    from pipeline.models.serving_model import FeedPadding, Padding, Variable, write_serving_model

    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    with tempfile.TemporaryDirectory() as work:
        program = paddle.static.default_main_program()
        paddle.static.save_inference_model(f"{work}/inference", feeds, [logits], executor, program=program)
        (fetch,) = paddle.static.load_inference_model(f"{work}/inference", executor)[2]
        dtypes = {paddle.int64: "int64", paddle.float32: "float32"}
        write_serving_model(
            target,
            Path(work, "inference.pdmodel"),
            Path(work, "inference.pdiparams"),
            [Variable(feed.name, feed.name, dtypes[feed.dtype], tuple(feed.shape)) for feed in feeds],
            [Variable(fetch.name, "logits", "float32", (-1, len(LABELS)))],
            padding=Padding({name: FeedPadding(1) for name in padded}, {}) if padded else None,
            labels=LABELS,
        )


if __name__ == "__main__":
    import paddle

    paddle.seed(1)
    globals()[f"_build_{sys.argv[1]}"](Path(sys.argv[2]))
