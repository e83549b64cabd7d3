"""The KServe v2 protocol with Triton's extensions: tensors over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from pipeline.dialects.dialect import Dialect, Form, FrontPart, SeparatePort, WorkerPart

if TYPE_CHECKING:
    from pipeline.front.repository import Repository
    from pipeline.front.scheduler.scheduler import Scheduler


class KServeV2:
    """Plug-in for the KServe v2 protocol, see `Dialect`."""

    name = "kserve_v2"

    def front(self, scheduler: Scheduler, repository: Repository) -> FrontPart:
        from pipeline.dialects.kserve_v2.http_routes import HEALTH_PAGES, V2Http, v2_paths
        from pipeline.dialects.kserve_v2.rpc_methods import APIS, HEALTH_CALLS, V2Rpc
        from pipeline.dialects.triton_extensions.metrics import TritonMetrics
        from pipeline.dialects.triton_extensions.server import V2Server

        server = V2Server(scheduler, repository)
        scheduler.metrics.add(TritonMetrics(scheduler, server.models).text)
        ports: Mapping[str, SeparatePort] = {}
        if scheduler.app.config.v2.sagemaker_port is not None:
            from pipeline.dialects.kserve_v2.sagemaker import open_sagemaker

            ports = open_sagemaker(server)
        return FrontPart(
            http=V2Http(server),
            prefixes=("/v2/", "/v2"),
            methods=V2Rpc(server).methods,
            apis=APIS,
            open_pages=HEALTH_PAGES,
            open_methods=HEALTH_CALLS,
            open_files=server.memory.max_regions,
            ports=ports,
            openapi=partial(v2_paths, scheduler.app, server.models),
            close=server.close,
        )

    def worker(self) -> WorkerPart:
        from pipeline.dialects.kserve.unread import UnreadTensor
        from pipeline.dialects.kserve_v2 import answers

        return WorkerPart(
            forms={
                answers.JSON: Form(answers.render_json, list_outputs=answers.list_outputs),
                answers.PROTO: Form(answers.render_message, list_outputs=answers.list_outputs),
                answers.GENERATED: Form(answers.render_generated, list_outputs=answers.list_outputs),
            },
            unread=(UnreadTensor,),
        )


DIALECT: Dialect = KServeV2()
