from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_recorded


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    """The repository that Triton's answers were recorded with, served."""
    with RepositoryProcess(write_recorded(tmp_path_factory.mktemp("recorded"))) as process:
        yield process
