"""Small models of transformers with random weights, in folders as Hugging Face has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.models.subject import LENGTH, ROWS, SOURCE, Subject, keep
from convert.steps.progress import Steps

FAMILY = "Hugging Face"
WORDS = 60
_SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "num_labels": 3,
}
_NEEDS = ("torch", "transformers")


def make(steps: Steps, folder: str, model: str, config: str, **settings: Any) -> str:
    """Write a model folder as transformers saves it, and keep the model's answer to ids without padding."""
    import torch
    import transformers

    torch.manual_seed(1)
    model_config = getattr(transformers, config)(**{**_SIZES, **settings}, attn_implementation="eager")
    network = getattr(transformers, model)(model_config).eval()
    for weight in network.parameters():  # as far from the initial values as trained weights
        torch.nn.init.normal_(weight, std=0.2)
    source = Path(folder, SOURCE)
    network.save_pretrained(source)
    inputs = _given(network, model_config)
    with torch.no_grad():
        answer = network(**inputs)
    expected = {name: value.numpy() for name, value in answer.items() if isinstance(value, torch.Tensor)}
    keep(folder, {name: tensor.numpy() for name, tensor in inputs.items()}, expected)
    return str(source)


def _given(network: Any, config: Any) -> dict[str, Any]:
    import inspect

    import torch

    if "pixel_values" in inspect.signature(network.forward).parameters:
        return {"pixel_values": torch.randn(ROWS, 3, config.image_size, config.image_size)}
    ids = torch.randint(3, WORDS, (ROWS, LENGTH))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return inputs | ({"token_type_ids": ids % 2} if getattr(config, "type_vocab_size", 0) > 1 else {})


def _text(name: str, family: str, head: str = "ForSequenceClassification", **settings: Any) -> Subject:
    arguments = {"model": f"{family}{head}", "config": f"{family}Config", **settings}
    return Subject(name, FAMILY, f"{__name__}:make", _NEEDS, arguments)


_NO_TYPES = {"type_vocab_size": 1, "pad_token_id": 1}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "pad_token_id": 0}
_DISTILBERT = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4}
_DEBERTA: dict[str, Any] = {
    "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"],
    "type_vocab_size": 0, "pooler_hidden_size": 32, "position_biased_input": False,
}  # fmt: skip

SUBJECTS = (
    _text("BERT, texts", "Bert"),
    _text("BERT, tokens", "Bert", "ForTokenClassification"),
    _text("RoBERTa, texts", "Roberta", **_NO_TYPES),
    _text("DistilBERT, texts", "DistilBert", **_DISTILBERT),
    _text("ELECTRA, texts", "Electra", embedding_size=16),
    _text("DeBERTa-v3, texts", "DebertaV2", **_DEBERTA),
    _text("XLM-R, texts", "XLMRoberta", **_NO_TYPES),
    _text("MiniLM, embeddings", "Bert", "Model"),
    _text("ALBERT, texts", "Albert", embedding_size=16),
    _text("GPT-2, texts", "GPT2", **_GPT2),
    _text("GPT-2, next token", "GPT2", "LMHeadModel", **_GPT2),
    Subject(
        "ViT, images", FAMILY, f"{__name__}:make", _NEEDS,
        {"model": "ViTForImageClassification", "config": "ViTConfig", "image_size": 32, "patch_size": 8},
        ("--input-spec", "pixel_values:float32[-1,3,32,32]"),
    ),
)  # fmt: skip
