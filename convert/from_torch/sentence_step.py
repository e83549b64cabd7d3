"""Computes text embeddings as Sentence Transformers does, as a reference; in the conversion environment."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from convert.from_torch.pretrained import load_pretrained
from convert.steps.progress import Steps
from pipeline.errors import ConversionError

TEXTS = ("rain", "A man is eating food.", "国足客场取胜, 3.14")
_MAX_PROMPTS = 8  # that are compared besides the default


def sentence_step(
    steps: Steps,
    source: str,
    settings: Mapping[str, Any],
    dense: Sequence[str],
    layers_file: str,
    model: str,
) -> dict[str, Any]:
    """Return a dict with "texts", names of their "prompts", and the source model's embeddings ("vectors").

    source: the Sentence Transformers folder. dense: the folders of its Dense modules, whose weights are
    written to `layers_file` for the service. model: the .onnx file; if empty, the source's own weights are
    run. The result is empty for a model with an input that tokenizers do not produce.
    """
    steps.step("Sentence vectors of the source")
    layers = [_Dense(Path(folder)) for folder in dense]
    _write_weights(layers, settings.get("layers", ()), Path(layers_file))
    run = _onnx_model(model) if model else _torch_model(source)
    if run is None:
        return {}
    encoder = _Encoder(settings, layers, AutoTokenizer.from_pretrained(source, local_files_only=True), run)
    proof: dict[str, list[Any]] = {"texts": [], "prompts": [], "vectors": []}
    for prompt, text in _requests(settings):
        proof["texts"].append(text)
        proof["prompts"].append(prompt)
        proof["vectors"].append(encoder.encode(text, settings.get("prompts", {}).get(prompt, "")))
    return proof


def _requests(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return pairs of prompt name and text: all texts with the default prompt, one with each other prompt."""
    longest = settings.get("max_tokens")
    default = settings.get("default_prompt", "")
    texts = [*TEXTS, *(["a longer text " * longest] if longest else [])]
    names = [name for name in settings.get("prompts", {}) if name != default][:_MAX_PROMPTS]
    return [(default, text) for text in texts] + [(name, TEXTS[1]) for name in names]


class _Dense:
    """A Dense module of Sentence Transformers: its activation, and its weights as PyTorch tensors."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        name = str(config.get("activation_function", "torch.nn.Tanh")).rpartition(".")[2]
        self.activation = getattr(torch.nn, name)()
        self.weights = {key: array.float() for key, array in _load_weights(folder).items()}
        self.is_residual = bool(config.get("use_residual"))
        if "linear.weight" not in self.weights:
            raise ConversionError(f"{folder} has no linear.weight; fetch its weights again.")

    def __call__(self, vector: Any) -> Any:
        linear, bias = self.weights["linear.weight"], self.weights.get("linear.bias")
        result = self.activation(torch.nn.functional.linear(vector, linear, bias))
        if not self.is_residual:
            return result
        residual = self.weights.get("residual.weight")
        return result + (vector if residual is None else torch.nn.functional.linear(vector, residual))

    def arrays(self) -> dict[str, Any]:
        """Return the weights as arrays, by the names that a service reads."""
        linear = self.weights["linear.weight"]
        arrays = {"weight": linear, "bias": self.weights.get("linear.bias")}
        if self.is_residual:
            arrays["residual"] = self.weights.get("residual.weight", torch.eye(len(linear)))
        return {name: array.numpy() for name, array in arrays.items() if array is not None}


def _load_weights(folder: Path) -> dict[str, Any]:
    if (folder / "model.safetensors").is_file():
        from safetensors.torch import load_file

        return dict(load_file(folder / "model.safetensors"))
    return dict(torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True))


def _write_weights(layers: Sequence[_Dense], entries: Sequence[Mapping[str, Any]], file: Path) -> None:
    numbers = [number for number, entry in enumerate(entries) if entry["kind"] == "dense"]
    arrays = {
        f"{number}.{name}": array
        for number, layer in zip(numbers, layers, strict=True)
        for name, array in layer.arrays().items()
    }
    if arrays:
        np.savez(file, **arrays)


class _Encoder:
    """Computes text embeddings from Sentence Transformers settings: tokens, pooling, Dense, normalisation.

    run: a function from tokens to hidden states, or to the embedding.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        dense: Sequence[_Dense],
        tokenizer: Any,
        run: Callable[[Any], Any],
    ) -> None:
        self._settings = settings
        self._dense = dense
        self._tokenizer = tokenizer
        self._run = run

    def encode(self, text: str, prompt: str) -> list[float]:
        """Return the embedding of one text after a prompt, normalised to length 1."""
        with torch.no_grad():
            tokens = self._tokens(prompt + text)
            vector = self._run(tokens)
            if vector.dim() == 2:
                vector = self._head(self._pool(vector, self._prompt_mask(len(vector), prompt)))
            normalized: list[float] = torch.nn.functional.normalize(vector, dim=0).tolist()
            return normalized

    def _tokens(self, text: str) -> Any:
        longest = self._settings.get("max_tokens")
        cut = {"truncation": True, "max_length": longest} if longest else {}
        lowercase = self._settings.get("lowercase")
        return self._tokenizer(text.lower() if lowercase else text, return_tensors="pt", **cut)

    def _prompt_mask(self, tokens: int, prompt: str) -> Any:
        """Return a mask of the tokens to pool: 1, or 0 for prompt tokens that pooling excludes."""
        mask = torch.ones(tokens)
        if prompt and self._settings.get("include_prompt") is False:
            ids = self._tokens(prompt)["input_ids"][0]
            special = int(ids[-1]) in self._tokenizer.all_special_ids
            mask[: len(ids) - special] = 0
        return mask

    def _pool(self, states: Any, mask: Any) -> Any:
        poolings = self._settings.get("pooling", "mean")
        names = [poolings] if isinstance(poolings, str) else poolings
        return torch.cat([_POOLED[name](states, mask.unsqueeze(1)) for name in names])

    def _head(self, vector: Any) -> Any:
        dense = iter(self._dense)
        for entry in self._settings.get("layers", ()):
            is_dense = entry["kind"] == "dense"
            vector = next(dense)(vector) if is_dense else torch.nn.functional.normalize(vector, dim=0)
        return vector


def _positions(mask: Any) -> Any:
    return mask * torch.arange(1, len(mask) + 1).unsqueeze(1)


_POOLED: Mapping[str, Callable[[Any, Any], Any]] = {
    "cls": lambda states, mask: states[int(mask.argmax())],
    "lasttoken": lambda states, mask: states[-1],
    "max": lambda states, mask: states.masked_fill(mask == 0, -torch.inf).max(dim=0).values,
    "mean": lambda states, mask: (states * mask).sum(dim=0) / mask.sum(),
    "mean_sqrt_len": lambda states, mask: (states * mask).sum(dim=0) / mask.sum().sqrt(),
    "weightedmean": lambda states, mask: (states * _positions(mask)).sum(dim=0) / _positions(mask).sum(),
}


def _torch_model(source: str) -> Callable[[Any], Any]:
    model = load_pretrained(Path(source)).eval()
    return lambda tokens: model(**tokens)[0][0]


def _onnx_model(file: str) -> Callable[[Any], Any] | None:
    """Return a function that runs an ONNX model on the tokens of one text; None for unsuitable models.

    The function returns the only output with a vector per token, or else the only output with a vector per
    text. Paddle models, and models with other inputs or outputs, are unsuitable.
    """
    import onnxruntime

    if Path(file).suffix != ".onnx":
        return None

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    inputs = {node.name: node.type for node in session.get_inputs()}
    if inputs.keys() - {"input_ids", "attention_mask", "token_type_ids"}:
        return None
    ranks = [len(output.shape) for output in session.get_outputs()]
    rank = next((rank for rank in (3, 2) if ranks.count(rank) == 1), None)
    if rank is None:
        return None
    number = ranks.index(rank)

    def run(tokens: Any) -> Any:
        dtypes = {"tensor(int32)": np.int32, "tensor(float)": np.float32}
        feeds = {
            name: tokens.get(name, torch.zeros_like(tokens["input_ids"]))
            .numpy()
            .astype(dtypes.get(kind, np.int64))
            for name, kind in inputs.items()
        }
        return torch.from_numpy(session.run(None, feeds)[number][0]).float()

    return run
