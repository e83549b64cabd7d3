"""Trains a Paddle model on the CPU by AdamW, with warm-up, cosine decay and bounded gradients."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import nn

from convert.programs.program_feeds import Array, Feeds
from convert.steps.progress import Steps

MAX_THREADS = 4


@dataclass(frozen=True)
class Schedule:
    """The learning rate schedule of a training: peak rate, share of warm-up, and weight decay."""

    learning_rate: float = 1e-3
    warm_up: float = 0.1  # share of steps in which the rate grows
    weight_decay: float = 0.05


def seed_training(seed: int) -> None:
    """Seed Paddle's random numbers to make a training repeatable, and limit it to 4 threads."""
    paddle.seed(seed)
    paddle.base.core.set_num_threads(min(MAX_THREADS, len(os.sched_getaffinity(0))))


def fit(
    model: Any,
    batches: Iterable[tuple[Feeds, Array]],
    loss: Callable[[Any, Any], Any],
    total: int,
    schedule: Schedule,
    steps: Steps,
) -> None:
    """Train a model on `total` batches, one step each. Afterwards the model is in evaluation mode.

    batches: pairs of inputs and targets. loss: a function of the model's outputs and a batch's targets.
    """
    rates, optimizer = _optimizer(model, schedule, total)
    model.train()
    for feeds, targets in batches:
        outputs = model(*map(paddle.to_tensor, feeds.values()))
        loss(outputs, paddle.to_tensor(targets)).backward()
        optimizer.step()
        optimizer.clear_grad()
        rates.step()
        steps.advance()
    model.eval()


def _optimizer(model: Any, schedule: Schedule, total: int) -> tuple[Any, Any]:
    rate, warm = schedule.learning_rate, int(total * schedule.warm_up)
    decay = paddle.optimizer.lr.CosineAnnealingDecay(rate, max(1, total - warm), rate * 0.02)
    rates = paddle.optimizer.lr.LinearWarmup(decay, warm, 0.0, rate)
    optimizer = paddle.optimizer.AdamW(
        rates,
        parameters=model.parameters(),
        weight_decay=schedule.weight_decay,
        grad_clip=nn.ClipGradByGlobalNorm(1.0),
    )
    return rates, optimizer
