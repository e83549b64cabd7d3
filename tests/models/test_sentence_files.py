"""The settings of a folder of Sentence Transformers, and which of them are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.models.sentence_files import read_sentence, read_sentence_files

MODULES = ("Transformer", "Pooling", "Normalize")
DENSE = {"in_features": 8, "out_features": 3, "activation_function": "torch.nn.modules.activation.Tanh"}


def write(
    folder: Path, modules: tuple[str, ...] = MODULES, dense: dict[str, Any] | None = None, **pooling: Any
) -> Path:
    places = {"Transformer": "", "Pooling": "1_Pooling"}
    listed = [
        {"path": places.get(kind, f"{number}_{kind}"), "type": f"sentence_transformers.models.{kind}"}
        for number, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed), "utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), "utf-8")
    for module in listed:
        if module["path"].endswith("_Dense"):
            (folder / module["path"]).mkdir()
            (folder / module["path"] / "config.json").write_text(json.dumps(DENSE | (dense or {})), "utf-8")
            (folder / module["path"] / "pytorch_model.bin").touch()
    return folder


def prompt(folder: Path, **config: Any) -> None:
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config), "utf-8")


def settings(folder: Path) -> dict[str, Any]:
    return dict(read_sentence_files(folder).settings)


def test_a_model_without_such_files_has_no_settings(tmp_path: Path) -> None:
    assert settings(tmp_path) == {}


def test_pooling_length_and_prompts_are_kept(tmp_path: Path) -> None:
    write(tmp_path, pooling_mode_cls_token=True, pooling_mode_mean_tokens=False, include_prompt=False)
    (tmp_path / "sentence_bert_config.json").write_text(
        '{"max_seq_length": 256, "do_lower_case": true}', "utf-8"
    )
    prompt(tmp_path, prompts={"query": "query: ", "document": ""}, default_prompt_name="query")
    expected = {
        "pooling": "cls",
        "include_prompt": False,
        "max_tokens": 256,
        "lowercase": True,
        "prompts": {"query": "query: "},
        "default_prompt": "query",
    }
    assert settings(tmp_path) == expected
    names = [path.name for path in read_sentence_files(tmp_path).paths]
    assert sorted(names) == [
        "config.json",
        "config_sentence_transformers.json",
        "modules.json",
        "sentence_bert_config.json",
    ]
    # The files count where serving.yml beside them says nothing of the pooling.
    read = read_sentence({"sentence": {"max_tokens": 8}}, tmp_path / "serving_server")
    assert (read.poolings, read.max_tokens, read.default_prompt) == (("cls",), 8, "query")
    noted = read_sentence({"sentence": {"pooling": ["mean", "max"]}}, tmp_path)
    assert (noted.poolings, noted.max_tokens, noted.default_prompt) == (("mean", "max"), None, "")


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode": "lasttoken"}, "lasttoken"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "mean_sqrt_len"),
        # Several: flags in the order of Sentence Transformers, a list in its own.
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ["cls", "mean"]),
        ({"pooling_mode_lasttoken": True, "pooling_mode_max_tokens": True}, ["max", "lasttoken"]),
        ({"pooling_mode": ["mean", "cls"]}, ["mean", "cls"]),
        ({"pooling_mode": ["max"]}, "max"),
    ],
)
def test_each_pooling_has_a_name(tmp_path: Path, config: dict[str, Any], name: object) -> None:
    assert settings(write(tmp_path, **config)) == {"pooling": name}


@pytest.mark.parametrize(
    ("modules", "dense", "layers"),
    [
        (("Dense",), {}, [{"kind": "dense", "size": 3, "activation": "tanh"}]),
        (("Dropout", "Dense", "Normalize"), {}, [{"kind": "dense", "size": 3, "activation": "tanh"}]),
        (
            ("Normalize", "Dense", "Dense"),
            {"activation_function": "torch.nn.modules.linear.Identity", "module_output_name": None},
            [{"kind": "normalize"}, *[{"kind": "dense", "size": 3, "activation": "identity"}] * 2],
        ),
    ],
)
def test_layers_stand_in_the_order_of_the_modules(
    tmp_path: Path, modules: tuple[str, ...], dense: dict[str, Any], layers: list[dict[str, Any]]
) -> None:
    folder = write(tmp_path, ("Transformer", "Pooling", *modules), dense, pooling_mode="mean")
    assert settings(folder) == {"pooling": "mean", "layers": layers}
    files = read_sentence_files(folder)
    assert [path.name.partition("_")[2] for path in files.dense] == ["Dense"] * modules.count("Dense")
    with pytest.raises(ConfigError, match=r"Dense module, whose weights .*paddlewheel convert all"):
        read_sentence({}, folder)


@pytest.mark.parametrize(
    ("modules", "dense", "pooling", "error"),
    [
        (MODULES, {}, {"pooling_mode_attention": True}, "has pooling_mode_attention; known are pooling_mode"),
        (MODULES, {}, {"pooling_mode": ["cls", "attention"]}, "has attention; known are cls, max"),
        (MODULES, {}, {}, "has no pooling_mode"),
        ((*MODULES, "LayerNorm"), {}, {}, "has the module LayerNorm, which no service runs"),
        ((*MODULES, "Pooling"), {}, {}, "has two Pooling modules"),
        (("Transformer", "Dense", "Pooling"), {}, {}, "has a Dense module before the Pooling"),
        ((*MODULES, "Dense"), {"activation_function": "torch.nn.Mish"}, {}, "torch.nn.Mish is not served"),
        ((*MODULES, "Dense"), {"activation_function": "my.Tanh"}, {}, "my.Tanh is not served; known are Id"),
        ((*MODULES, "Dense"), {"out_features": 0}, {}, "out_features 0 is not a whole number"),
        ((*MODULES, "Dense"), {"module_input_name": "token_embeddings"}, {}, "module_input_name is 'token_"),
    ],
)
def test_settings_that_no_service_follows_are_refused(
    tmp_path: Path, modules: tuple[str, ...], dense: dict[str, Any], pooling: dict[str, Any], error: str
) -> None:
    usual = {"pooling_mode": "cls"} if modules != MODULES else {}
    with pytest.raises(ConfigError, match=error):
        read_sentence_files(write(tmp_path, modules, dense, **(pooling or usual)))


def test_a_dense_module_needs_its_weights(tmp_path: Path) -> None:
    folder = write(tmp_path, ("Transformer", "Pooling", "Dense"), pooling_mode="cls")
    (folder / "2_Dense" / "pytorch_model.bin").unlink()
    with pytest.raises(ConfigError, match=r"2_Dense has no weights \(model.safetensors or pytorch_model.bin"):
        read_sentence_files(folder)
