"""docs/tensorrt.md: its configurations are valid, its refusals are those of the code, the languages agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from pipeline.config.config_file import load_config

ROOT = Path(__file__).resolve().parents[2]
ENGLISH, CHINESE = ROOT / "docs" / "tensorrt.md", ROOT / "docs" / "tensorrt_zh.md"


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """(language, code) of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


@pytest.mark.parametrize("code", [code for kind, code in blocks_of(ENGLISH) if kind == "yaml"])
def test_a_get_configuration_the_page_is_valid(code: str) -> None:
    conf = load_config({"http_port": 18082, **yaml.safe_load(code)}).op["ernie"].local_service_conf
    assert conf is not None
    assert (conf.device_type, conf.tensorrt.precision) == (2, "fp16")


def test_each_refusal_of_the_page_is_one_of_the_code() -> None:
    sources = [path.read_text("utf-8") for folder in ("pipeline", "convert") for path in rglob(folder)]
    code = re.sub(r'"\s*\n\s*f?"', "", "\n".join(sources))
    rows = re.findall(r"^\| (`.*?) \|", ENGLISH.read_text("utf-8"), re.M)
    assert len(rows) == 20
    for message in re.findall(r"`([^`]+)`", "\n".join(rows)):
        for part in re.split(
            r"\.\.\.|tensorrt\.shapes: |\d[\d.]*|\[.*?\]|'\w+'|pdmodel|input_ids|Tensorrt\w+", message
        ):
            assert part.strip(" :") in code, f"{part!r} of {message!r}"


def rglob(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_both_languages_have_the_same_examples_and_rows() -> None:
    assert blocks_of(ENGLISH) == blocks_of(CHINESE)
    structure = [re.findall(r"^(#+|\||-)", path.read_text("utf-8"), re.M) for path in (ENGLISH, CHINESE)]
    assert structure[0] == structure[1]
    messages = [re.findall(r"^\| (`.*?) \|", path.read_text("utf-8"), re.M) for path in (ENGLISH, CHINESE)]
    assert messages[0] == messages[1]
