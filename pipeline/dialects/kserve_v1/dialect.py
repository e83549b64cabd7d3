"""The KServe v1 protocol: instances and predictions in plain JSON, over HTTP."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pipeline.dialects.dialect import Dialect, Form, FrontPart, WorkerPart

if TYPE_CHECKING:
    from pipeline.front.repository import Repository
    from pipeline.front.scheduler.scheduler import Scheduler


class KServeV1:
    """Plug-in for the KServe v1 protocol, see `Dialect`."""

    name = "kserve_v1"

    def front(self, scheduler: Scheduler, repository: Repository) -> FrontPart:
        from pipeline.dialects.kserve.models import KServeModels
        from pipeline.dialects.kserve_v1.http_routes import V1Http, v1_paths

        models = KServeModels(scheduler, repository)
        return FrontPart(
            http=V1Http(scheduler, models),
            prefixes=("/v1/",),
            openapi=partial(v1_paths, scheduler.app, models),
        )

    def worker(self) -> WorkerPart:
        from pipeline.dialects.kserve_v1 import answers
        from pipeline.dialects.kserve_v1.unread_rows import UnreadRows

        return WorkerPart(forms={answers.JSON: Form(answers.render)}, unread=(UnreadRows,))


DIALECT: Dialect = KServeV1()
