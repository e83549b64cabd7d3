"""Paddle Serving's key/value protocol: JSON over HTTP, and PipelineService over gRPC."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pipeline.dialects.dialect import Dialect, Form, FrontPart, WorkerPart

if TYPE_CHECKING:
    from pipeline.front.repository import Repository
    from pipeline.front.scheduler.scheduler import Scheduler


class KeyValue:
    """Plug-in for Paddle Serving's key/value protocol, see `Dialect`."""

    name = "key_value"

    def front(self, scheduler: Scheduler, repository: Repository) -> FrontPart:
        from pipeline.dialects.key_value.front import KeyValueHttp, KeyValueRpc, key_value_paths
        from pipeline.front.http.http_handler import EVERYTHING_ELSE

        return FrontPart(
            http=KeyValueHttp(scheduler),
            prefixes=(EVERYTHING_ELSE,),
            methods=KeyValueRpc(scheduler).methods,
            openapi=partial(key_value_paths, scheduler.app),
        )

    def worker(self) -> WorkerPart:
        from pipeline.dialects.key_value import answers
        from pipeline.dialects.key_value.unread import (
            DeclaredTexts,
            UnreadMessage,
            UnreadTensor,
            UnreadText,
        )

        return WorkerPart(
            forms={
                form: Form(partial(answers.render_outputs, form), partial(answers.render_message, form))
                for form in (answers.JSON, answers.PROTO)
            },
            unread=(DeclaredTexts, UnreadText, UnreadTensor, UnreadMessage),
        )


DIALECT: Dialect = KeyValue()
