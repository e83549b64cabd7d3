"""docs/speech.md: its commands start services/voice_activity, and its client prints the segments."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from client.voice_activity import CONTEXT, WINDOW
from tests.support.followed_documents import Reader, blocks_of
from tests.support.service_process import ROOT
from tests.support.voice_models import write_talk, write_vad_model

PAGE, CHINESE = (ROOT / "docs" / name for name in ("speech.md", "speech_zh.md"))
SERVICE = "services/voice_activity"


def test_two_commands_start_the_service_and_a_third_prints_segments(tmp_path: Path) -> None:
    write_vad_model(tmp_path / "silero_vad.onnx")
    write_talk(tmp_path / "talk.wav")
    (tmp_path / "client").symlink_to(ROOT / "client")
    shutil.copytree(ROOT / SERVICE, tmp_path / SERVICE, ignore=shutil.ignore_patterns("*.onnx"))
    reader = Reader(tmp_path)
    config = tmp_path / SERVICE / "config.yml"
    config.write_text(reader.on_own_ports(config.read_text("utf-8")), "utf-8")
    reader.follow(PAGE)
    commands = [
        line for block in blocks_of(PAGE) if block.language == "sh" for line in block.text.splitlines()
    ]
    assert len(commands) == 3 and reader.printed[commands[2]] == "1.024 - 2.048 s\n"


def test_the_declared_state_is_that_of_the_service() -> None:
    (shown,) = (yaml.safe_load(block.text) for block in blocks_of(PAGE) if block.language == "yaml")
    served = yaml.safe_load((ROOT / SERVICE / "silero_vad" / "serving.yml").read_text("utf-8"))
    assert shown == served and served["warmup_shapes"]["input"] == [1, CONTEXT + WINDOW]


def test_both_languages_show_the_same_blocks() -> None:
    assert blocks_of(PAGE) == blocks_of(CHINESE)
