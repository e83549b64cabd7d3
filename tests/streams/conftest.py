from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from tests.support.answer_streams import write_streaming_models
from tests.support.repository_process import RepositoryProcess


@pytest.fixture(scope="package")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    """Decoupled models, and a model with a response sender, served."""
    with RepositoryProcess(write_streaming_models(tmp_path_factory.mktemp("streams"))) as process:
        yield process


@pytest.fixture
def channel(models: RepositoryProcess) -> Iterator[grpc.Channel]:
    with models.channel() as channel:
        yield channel
