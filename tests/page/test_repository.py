"""The page of a model repository: its models with their states, and each to be tried."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.page.conftest import ShowPage
from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

TEXT = """
backend: "identity"
max_batch_size: 4
input { name: "I" data_type: TYPE_STRING dims: 1 }
output { name: "O" data_type: TYPE_STRING dims: 1 }
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    folder = tmp_path_factory.mktemp("models")
    for name in ("first", "second"):
        write_model(folder, name, TEXT)
    write_model(folder, "misspelt", TEXT.replace("max_batch_size", "max_batch_sise"))
    with RepositoryProcess(folder) as process:
        yield process


def test_models_are_listed_with_their_states_and_one_is_chosen_and_tried(
    repository: RepositoryProcess, show: ShowPage
) -> None:
    page = show(repository)
    rows = page.locator(".repository tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("first")
    expect(rows.nth(1)).to_contain_text("did you mean max_batch_size?")
    expect(rows.nth(2).locator(".state")).to_have_text("READY")
    rows.nth(2).get_by_role("button", name="second").click()
    expect(page.locator("#model")).to_have_value("second")
    page.locator(".attempt .send").click()
    expect(page.locator(".attempt .told")).to_contain_text("200")
    expect(page.locator(".attempt .place")).to_contain_text("text")
