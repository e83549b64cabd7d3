"""Small models of Paddle and PaddleNLP with random weights.

The functions without `steps` are factories for `convert`, which runs them in the serving environment.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.models.subject import LENGTH, ROWS, SOURCE, Subject, keep, made_up
from convert.steps.progress import Steps

VISION, TEXT, NLP = "Paddle, vision", "Paddle, text", "PaddleNLP"
CLASSES = 10
WORDS = 50
_IMAGE = "image:float32[-1,3,64,64]"
_IDS = "input_ids:int64[-1,-1]"
_MASKED = f"{_IDS};attention_mask:int64[-1,-1]"


def lenet() -> Any:
    return _vision("LeNet")


def resnet18() -> Any:
    return _vision("resnet18")


def mobilenet_v2() -> Any:
    return _vision("mobilenet_v2", scale=0.25)


def mobilenet_v3() -> Any:
    return _vision("mobilenet_v3_small", scale=0.5)


def shufflenet_v2() -> Any:
    return _vision("shufflenet_v2_x0_25")


def squeezenet() -> Any:
    return _vision("squeezenet1_1")


def _vision(name: str, **settings: Any) -> Any:
    import paddle

    paddle.seed(1)
    return getattr(paddle.vision.models, name)(num_classes=CLASSES, **settings)


def text_cnn() -> Any:
    """Return a network with convolutions of several widths over embeddings, and the maximum of each."""
    import paddle
    from paddle import nn

    class TextCnn(nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(WORDS, 16)
            self.widths = nn.LayerList([nn.Conv1D(16, 8, width, padding="same") for width in (2, 3, 4)])
            self.output = nn.Linear(24, 3)

        def forward(self, input_ids: Any) -> Any:
            states = self.words(input_ids).transpose([0, 2, 1])
            return self.output(paddle.concat([width(states).max(-1) for width in self.widths], -1))

    paddle.seed(1)
    return TextCnn()


def lstm() -> Any:
    return _recurrent("LSTM")


def gru() -> Any:
    return _recurrent("GRU", direction="bidirect")


def _recurrent(cell: str, **settings: Any) -> Any:
    import paddle
    from paddle import nn

    class Recurrent(nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(WORDS, 16)
            self.cells = getattr(nn, cell)(16, 12, **settings)
            self.output = nn.Linear(24 if settings else 12, 3)

        def forward(self, input_ids: Any) -> Any:
            return self.output(self.cells(self.words(input_ids))[0].mean(1))

    paddle.seed(1)
    return Recurrent()


def transformer() -> Any:
    """Return an encoder whose mask keeps padding out of the mean."""
    import paddle
    from paddle import nn

    class Encoder(nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(WORDS, 16)
            layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)
            self.layers = nn.TransformerEncoder(layer, 2)
            self.output = nn.Linear(16, 3)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            mask = attention_mask.astype("float32")
            hidden = self.layers(self.words(input_ids), ((mask - 1) * 1e4).unsqueeze([1, 2]))
            mask = mask.unsqueeze(-1)
            return self.output((hidden * mask).sum(1) / mask.sum(1))

    paddle.seed(1)
    return Encoder()


def make(steps: Steps, folder: str, factory: str, spec: str) -> str:
    """Keep the answer of a factory's Layer, and return the factory's name, by which `convert` calls it."""
    import paddle

    layer: Any = _FACTORIES[factory]()
    layer.eval()
    inputs = made_up(spec, WORDS)
    output = layer(*map(paddle.to_tensor, inputs.values()))
    keep(folder, inputs, {"logits": output.numpy()})
    return f"{__name__}:{factory}"


def make_paddlenlp(steps: Steps, folder: str, family: str, head: str, **sizes: Any) -> str:
    """Write a model folder as PaddleNLP saves it."""
    import paddle
    from paddlenlp import transformers

    paddle.seed(3)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, num_labels=3, **sizes,
    )  # fmt: skip
    model = getattr(transformers, f"{family}For{head}")(config)
    model.eval()
    for weight in model.parameters():  # as far from the initial values as trained weights
        weight.set_value(weight + 0.1 * paddle.randn(weight.shape))
    source = Path(folder, SOURCE)
    model.save_pretrained(str(source))
    ids = np.random.default_rng(3).integers(3, WORDS, (ROWS, LENGTH))
    types = {} if config.type_vocab_size < 2 else {"token_type_ids": ids % 2}
    inputs = {"input_ids": ids, **types, "attention_mask": np.ones_like(ids)}
    logits = model(**{name: paddle.to_tensor(array) for name, array in inputs.items()})
    keep(folder, inputs, {"logits": logits.numpy()})
    return str(source)


_FACTORIES: dict[str, Callable[[], Any]] = {
    factory.__name__: factory
    for factory in (
        *(lenet, resnet18, mobilenet_v2, mobilenet_v3, shufflenet_v2, squeezenet),
        *(text_cnn, lstm, gru, transformer),
    )
}


def _layer(name: str, family: str, factory: str, spec: str) -> Subject:
    options = ("--input-spec", spec, "--fetch-alias", "logits")
    arguments = {"factory": factory, "spec": spec}
    return Subject(name, family, f"{__name__}:make", ("paddle",), arguments, options)


def _paddlenlp(name: str, family: str, head: str, **sizes: Any) -> Subject:
    arguments = {"family": family, "head": head, **sizes}
    return Subject(name, NLP, f"{__name__}:make_paddlenlp", ("paddle", "paddlenlp"), arguments)


SUBJECTS = (
    _layer("LeNet", VISION, "lenet", "image:float32[-1,1,28,28]"),
    _layer("ResNet-18", VISION, "resnet18", _IMAGE),
    _layer("MobileNetV2", VISION, "mobilenet_v2", _IMAGE),
    _layer("MobileNetV3", VISION, "mobilenet_v3", _IMAGE),
    _layer("ShuffleNetV2", VISION, "shufflenet_v2", _IMAGE),
    _layer("SqueezeNet", VISION, "squeezenet", _IMAGE),
    _layer("TextCNN", TEXT, "text_cnn", _IDS),
    _layer("LSTM", TEXT, "lstm", _IDS),
    _layer("GRU, both directions", TEXT, "gru", _IDS),
    _layer("Transformer", TEXT, "transformer", _MASKED),
    _paddlenlp("BERT, texts", "Bert", "SequenceClassification"),
    _paddlenlp("ERNIE, tokens", "Ernie", "TokenClassification"),
    _paddlenlp("RoBERTa, texts", "Roberta", "SequenceClassification", type_vocab_size=1, pad_token_id=1),
)
