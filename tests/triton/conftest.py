from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.repository_process import RepositoryProcess
from tests.support.triton_details import write_details
from tests.support.triton_repository import write_recorded
from tests.support.word_models import write_repository


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    """The repository that Triton's answers were recorded with, served."""
    with RepositoryProcess(write_recorded(tmp_path_factory.mktemp("recorded"))) as process:
        yield process


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    """Models of texts, some of which can't be served."""
    with RepositoryProcess(write_repository(tmp_path_factory.mktemp("models")), wait=False) as process:
        process.wait_for_log("is ready: http_port")
        yield process


@pytest.fixture(scope="session")
def details(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    """Models with flawed settings or unusual tensors."""
    with RepositoryProcess(write_details(tmp_path_factory.mktemp("details")), wait=False) as process:
        process.wait_for_log("is ready: http_port")
        yield process
