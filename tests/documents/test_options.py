"""The tables of options in the documents, against the declarations of the options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from client.load import LoadOptions
from client.options import list_flags
from convert.commands import COMMANDS, ShapeOptions
from pipeline.launch import command_options
from pipeline.launch.command_options import ScoreOptions, TuneOptions
from tests.support.flag_table import rows

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROW = re.compile(r"^\| *`(--[^|]*)\|", re.MULTILINE)  # a row of a table whose first cell is an option


def table_flags(page: str) -> list[str]:
    """The options in the first cells of a page's tables."""
    cells = ROW.findall((DOCS / page).read_text("utf-8"))
    return [flag for cell in cells for flag in re.findall(r"--[a-z0-9-]+", cell)]


@pytest.mark.parametrize("page", ["tuning.md", "tuning_zh.md"])
def test_the_table_of_tune_has_each_option(page: str) -> None:
    assert sorted(table_flags(page)) == sorted(list_flags(TuneOptions))


@pytest.mark.parametrize("page", ["benchmarks.md", "benchmarks_zh.md"])
def test_the_table_of_the_load_test_has_each_option(page: str) -> None:
    assert sorted(table_flags(page)) == sorted(list_flags(LoadOptions))


@pytest.mark.parametrize("page", ["scoring.md", "scoring_zh.md"])
def test_the_table_of_score_has_options_that_there_are(page: str) -> None:
    flags = table_flags(page)
    assert len(flags) >= 5
    assert set(flags) <= set(list_flags(ScoreOptions))


def test_the_table_of_triton_flags_is_that_of_the_declaration() -> None:
    """`python -m tests.support.flag_table` prints the English rows; the Chinese page translates effects."""
    english, chinese = (
        re.findall(r"^\| (`--.*) \| (`.*`) \| (.*) \|$", (DOCS / page).read_text("utf-8"), re.MULTILINE)
        for page in ("triton.md", "triton_zh.md")
    )
    assert english == rows()
    assert [(names.replace("、", ", "), value) for names, value, _ in chinese] == [row[:2] for row in rows()]
    assert [effect.startswith("不起作用") for *_, effect in chinese] == [
        effect.startswith("no effect") for *_, effect in english
    ]


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_commands_in_documents_have_options_that_there_are(page: str) -> None:
    """In lines such as `paddlewheel tune myservice --p99 50ms`."""
    text = (DOCS / page).read_text("utf-8").replace("\\\n", " ")
    exports = ("export triton", "export kubernetes")
    names = ("text", "explain", "new", "doctor", "tune", "score", "evaluate", "upgrade", "stop", *exports)
    commands: dict[str, set[str]] = {
        name: set(list_flags(getattr(command_options, f"{name.title().replace(' ', '')}Options")))
        for name in names
    }
    for name, (command, _, _) in COMMANDS.items():
        commands[f"convert {name}"] = {*list_flags(command), *list_flags(ShapeOptions), "--inputs"}
    for name, flags in commands.items():
        for line in re.findall(rf"paddlewheel {name} ([^`\n|;&]*)", text):
            used = set(re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", line.partition(" #")[0]))
            assert used <= {*flags, "--help"}, f"{page}: paddlewheel {name} {line}"
