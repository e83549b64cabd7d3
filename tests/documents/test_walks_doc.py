"""docs/walks.md: the walk without a conversion answers, and every command of the others has known options."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.command_line import paddlewheel
from tests.support.followed_documents import Reader, blocks_of
from tests.support.service_process import ROOT
from tests.support.voice_models import write_talk, write_vad_model

PAGE, CHINESE = (ROOT / "docs" / name for name in ("walks.md", "walks_zh.md"))


def test_the_walk_from_a_wav_to_segments(tmp_path: Path) -> None:
    write_vad_model(tmp_path / "silero_vad.onnx")
    write_talk(tmp_path / "talk.wav")
    reader = Reader(tmp_path)
    reader.follow(PAGE)
    ((answer, shown),) = reader.answers
    assert answer.status == 200 and shown["predictions"][0].keys() == {"starts", "ends"}
    (segments,) = json.loads(answer.body)["predictions"]
    assert segments == {"starts": [1.024], "ends": [2.048]}


@pytest.mark.parametrize("language", ["bash", "sh"])
def test_no_walk_has_more_than_four_commands(language: str) -> None:
    walks = [block.text.splitlines() for block in blocks_of(PAGE) if block.language == language]
    assert walks and all(len(commands) <= 4 for commands in walks)


def test_every_option_is_known() -> None:
    text = PAGE.read_text("utf-8")
    commands = re.findall(r"paddlewheel (convert-env|convert all|new|text|run)\b([^\n]*)", text)
    assert {name for name, _ in commands} == {"convert-env", "convert all", "new", "text", "run"}
    for name in {name for name, _ in commands}:
        known = paddlewheel(*name.split(), "--help").stdout
        options = {
            option for command, rest in commands if command == name for option in re.findall(r"--\w+", rest)
        }
        assert all(option in known for option in options), (name, options)


def test_both_languages_show_the_same_blocks() -> None:
    assert blocks_of(PAGE) == blocks_of(CHINESE)
