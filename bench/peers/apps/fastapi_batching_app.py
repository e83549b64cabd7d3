"""FastAPI with a queue before the model: `uvicorn bench.peers.apps.fastapi_batching_app:app --workers 2`.

Requests that arrive while a batch runs in a thread form the next batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from bench.peers.apps.classifier import BATCH, Classifier

Waiting = tuple[str, "asyncio.Future[dict[str, Any]]"]


class Headline(BaseModel):
    text: str


async def run_batches(queue: asyncio.Queue[Waiting]) -> None:
    classifier, loop = Classifier(), asyncio.get_running_loop()
    while True:
        batch = [await queue.get()]
        while len(batch) < BATCH and not queue.empty():
            batch.append(queue.get_nowait())
        texts = [text for text, _ in batch]
        answers = await loop.run_in_executor(None, classifier.classify, texts)
        for (_, answered), answer in zip(batch, answers, strict=True):
            answered.set_result(answer)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.queue = asyncio.Queue()
    task = asyncio.create_task(run_batches(app.state.queue))
    yield
    task.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/classify")
async def classify(headline: Headline) -> dict[str, Any]:
    answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    app.state.queue.put_nowait((headline.text, answered))
    return await answered
