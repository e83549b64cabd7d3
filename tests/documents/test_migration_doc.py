"""docs/migration.md and its Chinese twin say the same, and what they show can be read and run."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.config.config_file import ServiceConfig, load_config
from tests.paddle_serving import test_wire_replay
from tests.support.service_process import ROOT

ENGLISH, CHINESE = (ROOT / "docs" / name for name in ("migration.md", "migration_zh.md"))
BOTH = pytest.mark.parametrize("document", [ENGLISH, CHINESE], ids=["English", "Chinese"])
RECORDINGS = ROOT / "tests" / "fixtures" / "paddle_serving.jsonl"
DIFFERENCE_COLUMNS = 4
# What else the first column has between backticks that looks like the name of a case.
NO_CASES = {
    "auto_batching_timeout",
    "batch_size",
    "byte_data",
    "channel_recv_frist_arrive",
    "check_jumping",
    "concurrency_idx",
    "elem_type",
    "is_skip_process",
    "pack_response_package",
    "set_dynamic_shape_info",
    "str_data",
    "unpack_request_package",
}
NO_CASES |= {"err_no", "fetch_list", "init_op", "server_endpoints"}
NO_CASES |= {"inference_model_to_serving", "log_id", "paddle_serving_client", "paddle_serving_server"}
NO_CASES |= {"fetch_name_0", "save_dygraph_model", "save_model", "use_mkldnn"}


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text("utf-8"), re.M | re.S)


def tables(document: Path) -> list[list[list[str]]]:
    """Tables of rows of cells, without the line of dashes."""
    found: list[list[list[str]]] = [[]]
    for line in document.read_text("utf-8").splitlines():
        if line.startswith("|"):
            if not set(line) <= set("|- "):
                found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def differences(document: Path) -> list[list[str]]:
    return [row for table in tables(document) for row in table[1:] if len(row) == DIFFERENCE_COLUMNS]


def codes(text: str) -> list[str]:
    return sorted(re.findall(r"`([^`]+)`", text))


def heading_levels(document: Path) -> list[int]:
    text = re.sub(r"^```.*?^```$", "", document.read_text("utf-8"), flags=re.M | re.S)
    return [len(marks) for marks in re.findall(r"^(#+) ", text, re.M)]


def test_both_languages_have_the_same_headings_and_rows() -> None:
    assert heading_levels(ENGLISH) == heading_levels(CHINESE)
    shapes = [[[len(row) for row in table] for table in tables(doc)] for doc in (ENGLISH, CHINESE)]
    assert shapes[0] == shapes[1]
    assert len(differences(ENGLISH)) > 30


def test_both_languages_name_the_same_code_in_each_row() -> None:
    for english, chinese in zip(tables(ENGLISH), tables(CHINESE), strict=True):
        for ours, theirs in zip(english[1:], chinese[1:], strict=True):
            assert codes(" ".join(ours)) == codes(" ".join(theirs)), ours[0]


@pytest.mark.parametrize("language", ["sh", "python", "yaml"])
def test_both_languages_show_the_same_snippets(language: str) -> None:
    assert blocks(ENGLISH, language) == blocks(CHINESE, language)
    assert blocks(ENGLISH, language)


@BOTH
def test_every_difference_has_a_case_both_behaviours_and_a_reason(document: Path) -> None:
    assert [row for row in differences(document) if not all(row)] == []


@BOTH
def test_python_snippets_parse_and_configurations_are_accepted(document: Path) -> None:
    for snippet in blocks(document, "python"):
        ast.parse(snippet)
    for snippet in blocks(document, "yaml"):
        load_config(yaml.safe_load(snippet))


@BOTH
def test_keys_of_the_configuration_exist(document: Path) -> None:
    known = documented_keys()
    named = re.findall(
        r"`((?:dag|op\.<name>|logging|limits)\.\w[\w.]*?)(?:: [^`]*)?`", document.read_text("utf-8")
    )
    assert len(named) > 10
    assert [key for key in named if key not in known] == []


def documented_keys() -> set[str]:
    """Dotted names of every key, as docs/config.md has them."""
    keys, section = set(ServiceConfig.model_fields), ""
    for line in (ROOT / "docs" / "config.md").read_text("utf-8").splitlines():
        if heading := re.match(r"## `(.+)`", line):
            section = heading[1] + "."
        elif row := re.match(r"\| `(\w+)` \|", line):
            keys.add(section + row[1])
    return keys


@BOTH
def test_commands_of_this_project_exist(document: Path) -> None:
    text = document.read_text("utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    listed = set(re.findall(r"^ {4}([\w-]+)(?: |$)", done.stdout, re.M))
    named = set(re.findall(r"(?:^|`)paddlewheel ([\w-]+)", text, re.M))
    assert {"doctor", "run"} <= named <= listed
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    assert set(re.findall(r"\bmake (\w+)", text)) <= set(targets)
    for command in (line for block in blocks(document, "sh") for line in block.splitlines()):
        assert shlex.split(command)


@BOTH
def test_links_lead_to_files(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", document.read_text("utf-8"))
    assert targets
    assert [target for target in targets if not (document.parent / target).exists()] == []


@BOTH
def test_the_compatibility_modules_that_are_named_are_there(document: Path) -> None:
    named = re.findall(r"`(paddle_serving_\w+(?:\.\w+)*)`", document.read_text("utf-8"))
    folders = [ROOT / "compat" / Path(*name.split(".")) for name in named]
    assert folders
    assert [path for path in folders if not (path.is_dir() or path.with_suffix(".py").is_file())] == []


@BOTH
def test_recorded_cases_in_the_table_are_recorded(document: Path) -> None:
    recorded = {json.loads(line)["case"] for line in RECORDINGS.read_text("utf-8").splitlines()}
    named = [name for row in differences(document) for name in re.findall(r"`([a-z0-9]+_\w+)`", row[0])]
    assert [name for name in named if name not in recorded | NO_CASES] == []
    assert len(recorded & set(named)) > 20


@BOTH
def test_every_difference_that_the_replay_allows_is_in_the_table(document: Path) -> None:
    cases = {case.split()[0] for _, case in test_wire_replay.DIFFERENCES}
    told = " ".join(row[0] for row in differences(document))
    assert [case for case in cases if f"`{case}`" not in told] == []
