"""Steps that make small PyTorch models with random weights, and say what they answer."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers

from convert.from_torch.torch_model import load_torch_model
from convert.from_torch.torch_steps import onnx_step, paddle_step, torchscript_step
from convert.programs.file_model import torch_runner
from convert.proof.parity import parse_report
from convert.steps.progress import SilentSteps, Steps

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "num_labels": 3,
}
# What each has of its own, and is lost where only sizes and weights are carried over.
OWN = {
    "Bert": {"hidden_act": "gelu_new"},
    "Roberta": {"type_vocab_size": 1, "layer_norm_eps": 1e-3},
    "XLMRoberta": {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "hidden_act": "relu"},
    "Ernie": {"use_task_id": True},
    "Albert": {"embedding_size": 16},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "pad_token_id": 0},
}
HEADS = ("Model", "ForSequenceClassification", "ForTokenClassification")
ROUTES = (paddle_step, onnx_step, torchscript_step)


def save(steps: Steps, folder: str, family: str, head: str, safe: bool = True) -> None:
    """A model with weights large enough that every term tells, the padding's embedding included."""
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**SIZES, **OWN[family])
    model = getattr(transformers, family + head)(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder, safe_serialization=safe)


def differences(steps: Steps, folder: str) -> dict[str, list[float]]:
    """By architecture: how far each route's model is from PyTorch."""
    found = {}
    for family, head in product(("Bert", "Roberta", "XLMRoberta", "Ernie"), HEADS):
        source = Path(folder, family + head)
        save(steps, str(source), family, head)
        found[source.name] = []
        for route in ROUTES:
            out = source / route.__name__
            out.mkdir()
            reports = route(SilentSteps(), str(source), "", str(out), [5, 17], 1e-4, 16, "json")
            found[source.name].append(max(parse_report(report).max_abs_diff for report in reports))
    return found


def answers(steps: Steps, source: str, feeds: dict[str, Any]) -> list[Any]:
    """What PyTorch answers to feeds of int64."""
    model = load_torch_model(source, "")
    arrays = {name: torch.tensor(values).numpy() for name, values in feeds.items()}
    return [output.tolist() for output in torch_runner(model.positional, model.feeds)(arrays)]


def mean_embeddings(steps: Steps, source: str, texts: list[str]) -> list[Any]:
    """The mean of each text's token vectors, as the directory's own tokenizer and PyTorch make them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModel.from_pretrained(source).eval()
    means = []
    with torch.no_grad():
        for text in texts:
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
            means.append(hidden[0].mean(0).tolist())
    return means


def save_compared(steps: Steps, folder: str, head: str, words: list[str]) -> None:
    """A BERT that compares texts, with its tokenizer: an encoder, or a cross-encoder with one score."""
    torch.manual_seed(2)
    config = transformers.BertConfig(**{**SIZES, "num_labels": 1, "vocab_size": len(words)})
    model = getattr(transformers, f"Bert{head}")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    vocabulary = Path(folder, "vocab.txt")
    vocabulary.write_text("\n".join(words), "utf-8")
    transformers.BertTokenizerFast(str(vocabulary)).save_pretrained(folder)


def save_sentence_encoder(steps: Steps, folder: str, words: list[str]) -> None:
    """The encoder of `save_compared` with every setting of Sentence Transformers that changes a vector."""
    save_compared(steps, folder, "Model", words)
    root, width = Path(folder), SIZES["hidden_size"]
    kinds = ("Transformer", "Pooling", "Dense", "Normalize", "Dense")
    paths = ("", "1_Pooling", "2_Dense", "3_Normalize", "4_Dense")
    listed = [{"type": f"models.{kind}", "path": path} for kind, path in zip(kinds, paths, strict=True)]
    files: dict[str, Any] = {
        "modules.json": listed,
        "sentence_bert_config.json": {"max_seq_length": 12},
        "config_sentence_transformers.json": {"prompts": {"query": "国足 a ", "passage": "b"}},
        "1_Pooling/config.json": {
            "pooling_mode_mean_tokens": True,
            "pooling_mode_cls_token": True,
            "include_prompt": False,
        },
        "2_Dense/config.json": {
            "in_features": 2 * width,
            "out_features": 8,
            "bias": True,
            "activation_function": "torch.nn.modules.activation.GELU",
        },
        "4_Dense/config.json": {
            "in_features": 8,
            "out_features": 5,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    }
    for name, content in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(json.dumps(content), "utf-8")
    first = {"linear.weight": torch.randn(8, 2 * width), "linear.bias": torch.randn(8)}
    safetensors.torch.save_file(first, root / "2_Dense" / "model.safetensors")
    torch.save({"linear.weight": torch.randn(5, 8)}, root / "4_Dense" / "pytorch_model.bin")


def sentence_vectors(steps: Steps, source: str, prompt: str, texts: list[str]) -> list[Any]:
    """The vectors of length 1 of a `save_sentence_encoder`, each text alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModel.from_pretrained(source).eval()
    first = safetensors.torch.load_file(Path(source, "2_Dense", "model.safetensors"))
    last = torch.load(Path(source, "4_Dense", "pytorch_model.bin"), weights_only=True)
    skipped = len(tokenizer(prompt)["input_ids"]) - 1 if prompt else 0
    vectors = []
    with torch.no_grad():
        for text in texts:
            tokens = tokenizer(prompt + text, truncation=True, max_length=12, return_tensors="pt")
            states = model(**tokens).last_hidden_state[0][skipped:]
            pooled = torch.cat([states[0], states.mean(0)])
            hidden = torch.nn.functional.gelu(first["linear.weight"] @ pooled + first["linear.bias"])
            hidden = torch.nn.functional.normalize(hidden, dim=0)
            result = last["linear.weight"] @ hidden
            vectors.append(torch.nn.functional.normalize(result, dim=0).tolist())
    return vectors


def text_vectors(steps: Steps, source: str, texts: list[str], pooling: str) -> list[Any]:
    """What Sentence Transformers makes of each text: the mean of its tokens' or the first, of length 1."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModel.from_pretrained(source).eval()
    with torch.no_grad():
        hidden = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    pooled = [one[0] if pooling == "cls" else one.mean(0) for one in hidden]
    return [torch.nn.functional.normalize(one, dim=0).tolist() for one in pooled]


def pair_scores(steps: Steps, source: str, pairs: list[tuple[str, str]]) -> list[float]:
    """What a cross-encoder says of each pair, from 0 to 1."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source).eval()
    with torch.no_grad():
        logits = [model(**tokenizer(*pair, return_tensors="pt")).logits[0, 0] for pair in pairs]
    return [float(torch.sigmoid(one)) for one in logits]


def zero_shot(
    steps: Steps, folder: str, pieces: str, texts: list[str], labels: list[str], template: str
) -> dict[str, list[dict[str, float]]]:
    """Save a small XLM-R for NLI with its SentencePiece tokenizer; what the pipeline of transformers answers,
    by whether each label is judged by itself."""
    torch.manual_seed(3)
    tokenizer = transformers.XLMRobertaTokenizer(pieces)
    names = {0: "contradiction", 1: "neutral", 2: "entailment"}
    own = {**SIZES, **OWN["XLMRoberta"], "vocab_size": len(tokenizer), "pad_token_id": 1}
    named = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    model = transformers.XLMRobertaForSequenceClassification(transformers.XLMRobertaConfig(**own, **named))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ask = transformers.pipeline("zero-shot-classification", model=model, tokenizer=tokenizer)
    told: dict[str, list[dict[str, float]]] = {}
    for alone in (False, True):
        answers = ask(texts, labels, hypothesis_template=template, multi_label=alone)
        rows = [dict(zip(one["labels"], one["scores"], strict=True)) for one in answers]
        told["alone" if alone else "together"] = rows
    return told
