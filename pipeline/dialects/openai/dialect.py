"""OpenAI's API for embeddings, `POST /v1/embeddings`, for services with an embeddings model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pipeline.dialects.dialect import Dialect, Form, FrontPart, WorkerPart

if TYPE_CHECKING:
    from pipeline.front.repository import Repository
    from pipeline.front.scheduler.scheduler import Scheduler


class OpenAI:
    """Plug-in for OpenAI's embeddings API, see `Dialect`."""

    name = "openai"

    def front(self, scheduler: Scheduler, repository: Repository) -> FrontPart:
        from pipeline.dialects.openai.http_route import EMBEDDINGS_PATH, OpenAIHttp, embeddings_paths
        from pipeline.dialects.text_models import TextModels

        models = TextModels(scheduler)
        return FrontPart(
            http=OpenAIHttp(scheduler, models),
            prefixes=(EMBEDDINGS_PATH,),
            openapi=partial(embeddings_paths, models),
        )

    def worker(self) -> WorkerPart:
        from pipeline.dialects.openai import answers
        from pipeline.dialects.text_values import UnreadTexts

        return WorkerPart(forms={answers.EMBEDDINGS: Form(answers.render)}, unread=(UnreadTexts,))


DIALECT: Dialect = OpenAI()
