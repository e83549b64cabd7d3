"""FastAPI on uvicorn, one text at a time: `uvicorn bench.peers.apps.fastapi_app:app --workers 2`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from bench.peers.apps.classifier import Classifier


class Headline(BaseModel):
    text: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.classifier = Classifier()
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/classify")
async def classify(headline: Headline) -> dict[str, Any]:  # no thread: Paddle would hold the GIL there, too
    (answer,) = app.state.classifier.classify([headline.text])
    return answer
