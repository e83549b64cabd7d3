"""The order of answers: a model with `preserve_ordering` answers in the order in which requests were sent."""

from __future__ import annotations

from pipeline.front.dag_run import InOrder


class Try:
    """One try of a task. Tries of the same task have the same number."""

    def __init__(self, number: int, *, wanted: bool = True) -> None:
        self.number = number
        self.wanted = wanted


def test_the_late_reply_of_an_abandoned_try_does_not_take_the_place_of_the_next_try() -> None:
    answers: list[str] = []
    order, renewed, second = InOrder(), Try(0), Try(1)
    abandoned = Try(0, wanted=False)
    for task in (abandoned, second, renewed):
        order.sent(task)
    order.complete(second, lambda: answers.append("second"))
    order.complete(abandoned, lambda: None)
    assert answers == []
    order.complete(renewed, lambda: answers.append("first"))
    assert answers == ["first", "second"]
