"""The demo's model, a two-layer BERT classifier in plain `paddle.nn`, and its stored weights."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from convert.demo.headlines import LABELS
from pipeline.errors import ConversionError


@dataclass(frozen=True)
class BertSize:
    """The sizes of a BertClassifier: vocabulary, classes, layers, and widths."""

    vocabulary: int
    classes: int
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    feed_forward: int = 512
    positions: int = 512
    token_types: int = 2
    dropout: float = 0.1


def gelu_tanh(x: Any) -> Any:
    """Compute GELU by its tanh approximation, in a quarter of the exact function's time on the CPU."""
    return nn.functional.gelu(x, approximate=True)


class BertEmbeddings(nn.Layer):  # type: ignore[misc]
    """Word, position and token-type embeddings, summed and normalised: [N, L] -> [N, L, hidden]."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        normal = paddle.ParamAttr(initializer=nn.initializer.Normal(std=0.02))
        self.word = nn.Embedding(size.vocabulary, size.hidden, weight_attr=normal)
        self.position = nn.Embedding(size.positions, size.hidden, weight_attr=normal)
        self.token_type = nn.Embedding(size.token_types, size.hidden, weight_attr=normal)
        self.norm = nn.LayerNorm(size.hidden)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, input_ids: Any, token_type_ids: Any) -> Any:
        positions = paddle.arange(input_ids.shape[1], dtype="int64").unsqueeze(0)
        summed = self.word(input_ids) + self.position(positions) + self.token_type(token_type_ids)
        return self.dropout(self.norm(summed))


class BertClassifier(nn.Layer):  # type: ignore[misc]
    """A BERT text classifier: embeddings, encoder, mean pooling and a linear classifier.

    input_ids, token_type_ids, attention_mask: int64 [N, L]; logits: float32 [N, classes]. Positions whose
    attention_mask is 0 do not change the logits, so rows may be padded to a common length.
    """

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(size)
        layer = nn.TransformerEncoderLayer(
            size.hidden, size.heads, size.feed_forward, dropout=size.dropout, act_dropout=0.0
        )
        self.encoder = nn.TransformerEncoder(layer, size.layers)
        for encoder_layer in self.encoder.layers:
            encoder_layer.activation = gelu_tanh
        self.pooler = nn.Linear(size.hidden, size.hidden)
        self.dropout = nn.Dropout(size.dropout)
        self.classifier = nn.Linear(size.hidden, size.classes)

    def encode(self, input_ids: Any, token_type_ids: Any, attention_mask: Any) -> Any:
        """Return the hidden states of the last layer, float32 [N, L, hidden]."""
        masked = (1.0 - attention_mask.astype("float32")) * -1e4
        return self.encoder(self.embeddings(input_ids, token_type_ids), masked.unsqueeze([1, 2]))

    def forward(self, input_ids: Any, token_type_ids: Any, attention_mask: Any) -> Any:
        hidden = self.encode(input_ids, token_type_ids, attention_mask)
        # The mean over a row's own tokens learns from 1,500 headlines where [CLS] alone does not.
        weights = attention_mask.astype("float32").unsqueeze(-1)
        mean = (hidden * weights).sum(axis=1) / weights.sum(axis=1).clip(min=1.0)
        pooled = paddle.tanh(self.pooler(mean))
        return self.classifier(self.dropout(pooled))


_REMEDY = "restore it from the repository, or train again with `paddlewheel convert demo --train FILE`."


def save_weights(model: Any, path: Path) -> None:
    """Write a BertClassifier's parameters to an .npz file in half precision, without loss of accuracy."""
    arrays = {name: value.numpy().astype(np.float16) for name, value in model.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def load_model(path: Path, vocabulary: Sequence[str]) -> Any:
    """Load a BertClassifier in evaluation mode from an .npz file of `save_weights`, as float32.

    vocabulary: the tokens, whose number determines the model's size. Raises ConversionError for a damaged
    file, or weights of other shapes.
    """
    model = BertClassifier(BertSize(len(vocabulary), len(LABELS)))
    parameters = model.state_dict()
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name].astype(np.float32) for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as exc:
        raise ConversionError(f"{path} can't be read ({exc}); {_REMEDY}") from exc
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    if {name: array.shape for name, array in arrays.items()} != shapes:
        raise ConversionError(f"{path} holds the weights of another model than today's; {_REMEDY}")
    for name, array in arrays.items():
        parameters[name].set_value(paddle.to_tensor(array))
    model.eval()
    return model
