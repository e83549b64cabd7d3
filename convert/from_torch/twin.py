"""Builds a PaddleNLP model with the architecture and weights of a PyTorch encoder: its twin.

Imported in the conversion environment only.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import paddle
from paddle.nn import functional

from convert.from_torch.torch_source import twin_name
from convert.programs.paddlenlp_import import import_models
from convert.programs.program_feeds import Array
from pipeline.errors import ConversionError

# From a name in transformers to that in PaddleNLP; in this order.
_RENAMED = (
    ("encoder.layer.", "encoder.layers."),
    ("attention.self.query", "self_attn.q_proj"),
    ("attention.self.key", "self_attn.k_proj"),
    ("attention.self.value", "self_attn.v_proj"),
    ("attention.output.dense", "self_attn.out_proj"),
    ("attention.output.LayerNorm", "norm1"),
    ("intermediate.dense", "linear1"),
    ("output.dense", "linear2"),
    ("output.LayerNorm", "norm2"),
    ("embeddings.LayerNorm", "embeddings.layer_norm"),
)
_CARRIED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "pad_token_id",
    "num_labels",
)
_CARRIED_BY_ERNIE = ("use_task_id", "task_type_vocab_size")


def tanh_gelu(x: Any) -> Any:
    """Compute GELU by its tanh approximation."""
    return functional.gelu(x, approximate=True)


_ACTIVATIONS = {
    "gelu": functional.gelu,
    "gelu_new": tanh_gelu,
    "gelu_pytorch_tanh": tanh_gelu,
    "gelu_fast": tanh_gelu,
    "relu": functional.relu,
    "silu": functional.silu,
    "swish": functional.silu,
    "tanh": functional.tanh,
}


class Twin(paddle.nn.Layer):  # type: ignore[misc]
    """A PaddleNLP model with the inputs and the number of outputs of its PyTorch original.

    The class calls the model's heads directly, because the branches around them in PaddleNLP's forward()
    can't be exported.
    """

    def __init__(self, model: Any, outputs: int) -> None:
        super().__init__()
        name = type(model).__name__
        self.outputs = outputs
        self.encoder = model if name.endswith("Model") else getattr(model, model.base_model_prefix)
        self.head = None if name.endswith("Model") else model.classifier
        # The head of RoBERTa pools by itself.
        self.pools = name.endswith("ForSequenceClassification") and not name.startswith("Roberta")

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        hidden = self.encoder(
            input_ids, token_type_ids=token_type_ids, attention_mask=attention_mask, return_dict=False
        )
        if self.head is None:
            return hidden[: self.outputs]
        return self.head(hidden[1 if self.pools else 0])


def paddle_twin(original: Any, outputs: int) -> Twin:
    """Return a Paddle Layer equal to a transformers model, with this number of outputs.

    Raises ConversionError if PaddleNLP has no equal model.
    """
    return Twin(paddlenlp_model(original), outputs)


def paddlenlp_model(original: Any) -> Any:
    """Return PaddleNLP's model with the weights and settings of a transformers model.

    Raises ConversionError if PaddleNLP has no equal model.
    """
    name = twin_name(type(original).__name__)
    _check_config(original.config)
    twin = _create(name, original.config)
    _carry_settings(twin, original.config)
    weights = {key: tensor.detach().float().numpy() for key, tensor in original.state_dict().items()}
    twin.set_state_dict(map_weights(weights, twin))
    twin.eval()
    return twin


def map_weights(weights: Mapping[str, Array], twin: Any) -> dict[str, Array]:
    """Return a state_dict for a PaddleNLP model from PyTorch weights: renamed, linear weights transposed.

    Raises ConversionError unless names and shapes match. A pooler that the original lacks is not set: no
    output of the original depends on it.
    """
    linear = {
        f"{name}.weight" for name, layer in twin.named_sublayers() if isinstance(layer, paddle.nn.Linear)
    }
    places = twin.state_dict()
    mapped = {}
    for name, array in weights.items():
        place = _renamed(name)
        if place.endswith((".position_ids", ".token_type_ids", ".task_type_ids")):
            continue  # buffers, which old files hold
        if place not in places:
            raise ConversionError(f"weight {name!r} has no place in PaddleNLP's {type(twin).__name__}")
        value = array.T if place in linear else array
        if list(value.shape) != list(places[place].shape):
            raise ConversionError(
                f"weight {name!r} has shape {list(value.shape)}, its place in PaddleNLP's "
                f"{type(twin).__name__} {list(places[place].shape)}"
            )
        mapped[place] = value
    unset = sorted(name for name in places.keys() - mapped.keys() if "pooler." not in name)
    if unset:
        raise ConversionError(f"the PyTorch model has no weight for {unset[0]!r} of {type(twin).__name__}")
    return mapped


def _renamed(name: str) -> str:
    for old, new in _RENAMED:
        name = name.replace(old, new)
    return name


def _check_config(config: Any) -> None:
    """Raise ConversionError for settings of transformers that PaddleNLP's classes don't support."""
    if config.hidden_act not in _ACTIVATIONS:
        raise ConversionError(
            f"hidden_act {config.hidden_act!r} has no counterpart in Paddle ({', '.join(_ACTIVATIONS)} have)"
        )
    if getattr(config, "position_embedding_type", "absolute") != "absolute":
        raise ConversionError(
            f"position_embedding_type {config.position_embedding_type!r} is not in PaddleNLP (absolute is)"
        )
    if config.is_decoder or config.add_cross_attention:
        raise ConversionError("is_decoder and add_cross_attention are not in PaddleNLP's encoders")


def _create(name: str, config: Any) -> Any:
    create = getattr(import_models(), name, None)
    if create is None:
        raise ConversionError(f"PaddleNLP {metadata.version('paddlenlp')} has no {name}")
    carried = _CARRIED + (_CARRIED_BY_ERNIE if name.startswith("Ernie") else ())
    settings = {key: getattr(config, key) for key in carried}
    return create(create.config_class(**settings, hidden_act="relu", use_cache=False))


def _carry_settings(twin: Any, config: Any) -> None:
    """Set activation, epsilon and padding row of a PaddleNLP model.

    Its configuration has no such settings.
    """
    for layer in twin.sublayers():
        if isinstance(layer, paddle.nn.TransformerEncoderLayer):
            layer.activation = _ACTIVATIONS[config.hidden_act]
        elif isinstance(layer, paddle.nn.LayerNorm):
            layer._epsilon = config.layer_norm_eps
        elif isinstance(layer, paddle.nn.Embedding):
            # For the padding id Paddle returns zeros; PyTorch returns the row, excluded from training.
            layer._padding_idx = None
