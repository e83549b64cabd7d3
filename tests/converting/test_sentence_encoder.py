"""What a conversion keeps of a folder of Sentence Transformers, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from convert.from_torch.sentence_encoder import sentence_settings
from pipeline.errors import ConversionError

MODULES = ("Transformer", "Pooling", "Normalize")


def write(folder: Path, modules: tuple[str, ...] = MODULES, **pooling: Any) -> Path:
    places = {"Transformer": "", "Pooling": "1_Pooling"}
    listed = [
        {"path": places.get(kind, f"{number}_{kind}"), "type": f"sentence_transformers.models.{kind}"}
        for number, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed), "utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), "utf-8")
    return folder


def prompt(folder: Path, **config: Any) -> None:
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config), "utf-8")


def test_a_model_without_such_files_has_no_settings(tmp_path: Path) -> None:
    assert sentence_settings(tmp_path) == {}


def test_pooling_length_and_prompts_are_kept(tmp_path: Path) -> None:
    write(tmp_path, pooling_mode_cls_token=True, pooling_mode_mean_tokens=False, include_prompt=True)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 256}', "utf-8")
    prompt(tmp_path, prompts={"query": "query: ", "document": ""}, default_prompt_name="query")
    assert sentence_settings(tmp_path) == {
        "pooling": "cls",
        "max_tokens": 256,
        "prompts": {"query": "query: "},
        "default_prompt": "query",
    }


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
    ],
)
def test_each_pooling_has_a_name(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    assert sentence_settings(write(tmp_path, **config)) == {"pooling": name}


@pytest.mark.parametrize(
    ("modules", "config", "error"),
    [
        (MODULES, {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "cls_token, max_tokens"),
        (MODULES, {"pooling_mode_attention": True}, "has attention; one of"),
        (MODULES, {}, "has no pooling mode"),
        (("Transformer", "Pooling", "Dense"), {"pooling_mode_cls_token": True}, "has the module Dense"),
        (MODULES, {"pooling_mode_cls_token": True, "include_prompt": False}, "include_prompt: false"),
    ],
)
def test_what_a_service_would_leave_out_is_refused(
    tmp_path: Path, modules: tuple[str, ...], config: dict[str, Any], error: str
) -> None:
    prompt(tmp_path, prompts={"query": "query: "})
    with pytest.raises(ConversionError, match=error):
        sentence_settings(write(tmp_path, modules, **config))
