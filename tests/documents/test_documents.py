"""Every page for users is there in English and Chinese: with the same headings, tables and commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.service_process import ROOT

IN_ENGLISH_ALONE = {"design.md"}  # for those who change the code, as docs/decisions/ is
PAGES = sorted(
    page
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    if not page.stem.endswith("_zh") and page.name not in IN_ENGLISH_ALONE
)
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
PARTS = ("Question", "Decision", "Figure", "What would change it")
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def chinese_of(page: Path) -> Path:
    return page.with_name(f"{page.stem}_zh.md")


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)


def outline(page: Path) -> list[str]:
    """The level of each heading, and the number of columns of each row, from the top down."""
    lines = re.findall(r"^(#+ |\|.*)", without_code(page), re.M)
    return [line if line.startswith("#") else str(len(re.findall(r"(?<!\\)\|", line))) for line in lines]


def commands(page: Path) -> list[str]:
    """The lines of the shell's blocks, without their comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    return [re.sub(r"\s*#.*", "", line) for block in blocks for line in block.splitlines()]


@EACH_PAGE
def test_a_page_leads_to_itself_in_the_other_language(page: Path) -> None:
    twin = chinese_of(page)
    assert twin.is_file()
    assert re.search(rf"^\[中文\]\({twin.name}\)$", page.read_text("utf-8"), re.M)
    assert re.search(rf"^\[English\]\({page.name}\)$", twin.read_text("utf-8"), re.M)


@EACH_PAGE
def test_both_languages_have_the_same_headings_tables_and_commands(page: Path) -> None:
    assert outline(page) == outline(chinese_of(page))
    assert commands(page) == commands(chinese_of(page))


@pytest.mark.parametrize(
    "page", [*PAGES, *map(chinese_of, PAGES), ROOT / "docs/design.md", *DECISIONS], ids=lambda page: page.stem
)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", without_code(page)):
        file = page.parent / target if target else page
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)", file.read_text("utf-8"), re.M)
            assert heading in [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


@pytest.mark.parametrize(
    "page", [page for page in DECISIONS if page.stem != "README"], ids=lambda page: page.stem
)
def test_a_decision_has_its_four_parts_and_a_line_in_the_index(page: Path) -> None:
    text = page.read_text("utf-8")
    places = [text.find(f"\n**{part}.**") for part in PARTS]
    assert -1 not in places
    assert places == sorted(places)
    index = (page.parent / "README.md").read_text("utf-8")
    assert index.count(f"- [{page.name}]({page.name}): ") == 1
