"""The line before an Op: the order in which tasks leave it, and how few are looked at for an answer."""

from __future__ import annotations

import random
from typing import cast

from pipeline.front.dag_run import Task, TaskQueue


class Waiting:
    """A task, its DAG run and its request in one."""

    asked = 0  # how often one was asked whether it is wanted

    def __init__(self, priority: int, turn: int, number: int) -> None:
        self.priority, self.turn, self.number = priority, turn, number
        self.rows = 1 + number % 3
        self.dag_run = self.request = self
        self.place = (priority, turn, number)
        self.left = self.late = False
        self.in_line = True
        self.wait_limit = object()

    def cancel_wait_limit(self) -> None:
        assert self.in_line, "a task leaves the line once"
        self.in_line = False

    @property
    def wanted(self) -> bool:
        Waiting.asked += 1
        return not self.left


def added(line: TaskQueue, task: Waiting) -> Waiting:
    line.insert(cast(Task, task))
    return task


def test_tasks_leave_in_order_whatever_happens_meanwhile() -> None:
    chance = random.Random(5)
    line, waiting, number = TaskQueue(), dict[int, Waiting](), 0
    for step in range(20_000):
        flood = step % 4_000 < 2_000  # the line grows, then shrinks
        match chance.choice(["add", "add", "add" if flood else "take", "take", "leave", "last", "before"]):
            case "add":
                number += 1
                place = chance.choice([0, 0, 0, 2]), number // 7 + chance.randrange(9), number
                waiting[number] = added(line, Waiting(*place))
            case "leave" if waiting:
                waiting.pop(chance.choice(list(waiting))).left = True
            case "take":
                most = chance.randrange(1, 9)
                taken = [task.number for task in line.pop_tasks(most)]
                assert taken == [each.number for each in in_order(waiting)[:most]]
                for one in taken:
                    del waiting[one]
            case "last":
                last = line.last()
                assert (last and last.number) == (in_order(waiting)[-1].number if waiting else None)
            case "before":
                place = chance.choice([0, 2]), number // 7 + chance.randrange(9)
                ahead = sum(each.place < place for each in waiting.values())
                assert ahead <= line.before(place) <= len(line)
                rows = sum(each.rows for each in waiting.values() if each.place < place)
                assert rows <= line.rows_before(place) <= line.rows
        first = line.first()
        assert (first and first.number) == (in_order(waiting)[0].number if waiting else None)
        assert len(waiting) <= len(line) <= 2 * len(waiting) + 128, "those who left are let go"
    assert {task.number for task in line.clear()} >= waiting.keys()
    assert not len(line) and not line.rows


def in_order(waiting: dict[int, Waiting]) -> list[Waiting]:
    return sorted(waiting.values(), key=lambda each: each.place)


def test_who_would_be_last_is_known_without_looking_through_the_line() -> None:
    line = TaskQueue()
    tasks = [added(line, Waiting(0, turn, turn)) for turn in range(1000)]
    Waiting.asked = 0
    for _ in range(100):
        assert line.last() is cast(Task, tasks[-1])
        assert line.before((0, 500)) == 500
        assert line.rows_before((0, 500)) == sum(task.rows for task in tasks[:500])
    assert Waiting.asked == 100
    for task in tasks[500:]:
        task.left = True
    Waiting.asked = 0
    assert [line.last() for _ in range(100)] == [tasks[499]] * 100
    assert Waiting.asked == 600, "who has left is met once"


def test_cancelled_tasks_are_swept_out_each_time_the_queue_has_doubled() -> None:
    line = TaskQueue()
    tasks = [added(line, Waiting(0, turn, turn)) for turn in range(127)]
    for task in tasks[1::2]:
        task.left = True
    added(line, Waiting(0, 127, 127))
    assert len(line) == 65
    assert line.rows == sum(task.rows for task in tasks[::2]) + Waiting(0, 127, 127).rows
    assert [task.in_line for task in tasks[:4]] == [True, False, True, False]
    more = [added(line, Waiting(0, turn, turn)) for turn in range(200, 264)]
    for task in more:
        task.left = True
    added(line, Waiting(0, 300, 300))
    assert len(line) == 66, "at twice as many as the last sweep has left, here 130"


def test_tasks_of_a_priority_are_counted_apart() -> None:
    line = TaskQueue()
    for number, priority in enumerate((0, 0, 1, 2, 2, 2)):
        added(line, Waiting(priority, 0, number))
    assert [line.count_priority(priority) for priority in range(4)] == [2, 1, 3, 0]
    line.pop_tasks(1)
    assert line.count_priority(0) == 1
