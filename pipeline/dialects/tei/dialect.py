"""The API of Text Embeddings Inference (TEI): `/embed`, `/similarity`, `/rerank`, `/predict` and others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pipeline.dialects.dialect import Dialect, Form, FrontPart, WorkerPart

if TYPE_CHECKING:
    from pipeline.front.repository import Repository
    from pipeline.front.scheduler.scheduler import Scheduler


class Tei:
    """Plug-in for the API of Hugging Face's Text Embeddings Inference (TEI), see `Dialect`."""

    name = "tei"

    def front(self, scheduler: Scheduler, repository: Repository) -> FrontPart:
        from pipeline.dialects.tei.http_routes import HEALTH_PAGE, INFO, ROUTES, TeiHttp, tei_paths
        from pipeline.dialects.text_models import TextModels

        models = TextModels(scheduler)
        return FrontPart(
            http=TeiHttp(scheduler, models),
            prefixes=(*ROUTES, HEALTH_PAGE, INFO),
            open_pages=(HEALTH_PAGE.encode(),),
            openapi=partial(tei_paths, models),
        )

    def worker(self) -> WorkerPart:
        from pipeline.dialects.tei import answers
        from pipeline.dialects.text_values import UnreadTexts

        forms = {
            answers.EMBED: Form(answers.embed),
            answers.SIMILARITY: Form(answers.similarity),
            answers.RERANK: Form(answers.rerank),
            answers.PREDICT: Form(answers.predict),
            answers.EMBED_ALL: Form(answers.embed_all),
            answers.TOKENIZE: Form(answers.tokenize),
        }
        return WorkerPart(forms=forms, unread=(UnreadTexts,))


DIALECT: Dialect = Tei()
