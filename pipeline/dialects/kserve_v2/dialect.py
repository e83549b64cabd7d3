"""KServe v2 with Triton's extensions: tensors over HTTP and gRPC."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pipeline.dialects.dialect import Dialect, Form, FrontPart, WorkerPart

if TYPE_CHECKING:
    from pipeline.front.repository import Repository
    from pipeline.front.scheduler.scheduler import Scheduler


class KServeV2:
    name = "kserve_v2"

    def front(self, scheduler: Scheduler, repository: Repository) -> FrontPart:
        from pipeline.dialects.kserve.models import KServeModels
        from pipeline.dialects.kserve_v2 import openapi, rpc_methods
        from pipeline.dialects.kserve_v2.extensions import Extensions
        from pipeline.dialects.kserve_v2.host_metrics import HostMetrics
        from pipeline.dialects.kserve_v2.http_routes import HEALTH_PAGES, V2Http
        from pipeline.dialects.kserve_v2.repository_api import Control
        from pipeline.dialects.kserve_v2.triton_metrics import triton_metrics

        config = scheduler.app.config.v2
        models, extensions = KServeModels(scheduler, repository), Extensions(config)
        control = Control(models, repository, explicit=config.model_control == "explicit")
        scheduler.metrics.add(partial(triton_metrics, scheduler, models, HostMetrics()))
        return FrontPart(
            http=V2Http(scheduler, models, control, extensions),
            prefixes=("/v2/", "/v2"),
            methods=rpc_methods.V2Rpc(scheduler, models, control, extensions).methods,
            open_pages=HEALTH_PAGES,
            open_methods=rpc_methods.HEALTH_CALLS,
            openapi=partial(openapi.paths, scheduler.app, models),
            close=extensions.close,
        )

    def worker(self) -> WorkerPart:
        from pipeline.dialects.kserve.unread import UnreadTensor
        from pipeline.dialects.kserve_v2 import answers, wish

        return WorkerPart(
            forms={
                wish.JSON: Form(answers.render_json),
                wish.PROTO: Form(answers.render_message),
                wish.GENERATED: Form(answers.render_generated),
            },
            unread=(UnreadTensor,),
        )


DIALECT: Dialect = KServeV2()
