"""The race of candidates: who is started, who is dropped, what is chosen, and where the choice is used."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.config.config_file import Limits, load_config
from pipeline.config.op_section import OpConfig
from pipeline.errors import ConfigError
from pipeline.front.trial import _parse_bodies
from pipeline.models.serving_model import SAMPLE_FILE, load_serving_model
from pipeline.process import environment
from pipeline.tuning import auto
from pipeline.tuning.choice import CHOICES_FILE, Choice, Served, Timed, choose, choose_served
from pipeline.tuning.cpu_meter import CpuMeter
from pipeline.tuning.duel import MIN_PAIRS, Load
from pipeline.tuning.real_rows import GENERATED_LENGTHS, single_rows
from pipeline.tuning.trials import CALLERS, LIMITS, Candidate, Race, TrialFailed, TrialOrder
from tests.support import onnx_models
from tests.support.service_process import APPS, ROOT, ServiceProcess

BUDGET_S = 7.0
BODY = {"key": onnx_models.FEEDS, "value": ["[[1, 0, 1]]"] * len(onnx_models.FEEDS)}  # of apps/model.py


def timed(engine: str, row_s: float) -> Timed:
    return Timed(engine, "fp32", "model", ((1, 16, row_s), (8, 16, 8 * row_s)))


def candidate(engine: str, placement: str = "process") -> Candidate:
    return Candidate(engine, "fp32", placement, False, {}, timed(engine, 1e-3), 1 << 20)


Rate = Callable[[int, int], float]  # of batch limit and callers


class World:
    """Instances with fixed rates, and a clock that goes on by the length of each loop."""

    def __init__(
        self,
        rates: Mapping[tuple[str, str], Rate | str],
        start_s: float = 1.0,
        cpu_s: Mapping[str, float] | None = None,  # of a request, by engine or placement
        other_cores: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.started: list[str] = []
        self.running: set[str] = set()
        self.loops: list[tuple[str, int, int]] = []
        self.http_loops: list[tuple[str, int, int]] = []
        self.sections: dict[str, dict[str, Any]] = {}
        self._rates = rates
        self._start_s = start_s
        self._cpu_s = cpu_s or {}
        self._other_cores = other_cores

    async def start(self, candidate: Candidate) -> Any:
        self.now += self._start_s
        placed = "shards" if candidate.shards > 1 else candidate.placement
        rate = self._rates[candidate.engine, placed]
        if isinstance(rate, str):
            raise TrialFailed(rate)
        name = f"{candidate.engine} {placed}"
        self.started.append(name)
        self.sections[name] = candidate.section
        self.running.add(name)
        world = self

        class Instances:
            async def measure(
                self, limit: int, callers: int, seconds: float, *, over_http: bool = False
            ) -> Load:
                world.now += seconds
                (world.http_loops if over_http else world.loops).append((name, limit, callers))
                if over_http and (name, "http") in world._rates:
                    raise TrialFailed("it answers nothing over HTTP")
                cpu_s = world._cpu_s.get(candidate.engine) or world._cpu_s.get(placed, 1e-3)
                return Load(rate(limit, callers), cpu_s, world._other_cores)

            async def close(self) -> None:
                world.running.remove(name)

        return Instances()

    def run(
        self,
        candidates: list[Candidate],
        alternatives: Sequence[Candidate] = (),
        sharded: Sequence[Candidate] = (),
    ) -> list[Served]:
        order = TrialOrder("", candidates, list(alternatives), list(LIMITS), BUDGET_S, sharded=list(sharded))
        race = Race(order, self.start, lambda step, share: None, lambda: self.now)
        return asyncio.run(race.run())


def even(per_s: float) -> Rate:
    return lambda limit, callers: per_s


def test_the_instances_decide_and_each_is_started_once() -> None:
    world = World(
        {
            ("openvino", "process"): even(5600.0),
            ("onnxruntime", "process"): even(6100.0),
            ("onnxruntime", "thread"): even(4800.0),
        }
    )
    candidates = [candidate("openvino"), candidate("onnxruntime")]
    alternatives = [candidate(engine, "thread") for engine in ("openvino", "onnxruntime")]
    best, *_ = results = world.run(candidates, alternatives)
    assert (best.engine, best.placement) == ("onnxruntime", "process")
    assert len(results) == len(world.started) == len(set(world.started)) == 3
    assert "openvino thread" not in world.started, "only the best engine is tried in another placement"
    assert not world.running


def test_candidates_take_turns_until_the_difference_is_clear() -> None:
    world = World({("fast", "process"): even(1000.0), ("even", "process"): even(900.0)})
    best, loser = world.run([candidate("fast"), candidate("even")])
    assert (best.engine, loser.pairs) == ("fast", MIN_PAIRS)
    assert loser.ratio == pytest.approx(0.9)
    first = len(CALLERS) * 2  # loops after the starts
    turns = [name.partition(" ")[0] for name, *_ in world.loops[first : first + 2 * MIN_PAIRS]]
    assert turns == ["fast", "even", "even", "fast"] * (MIN_PAIRS // 2)
    assert {callers for _, _, callers in world.loops[first : first + 2 * MIN_PAIRS]} == set(CALLERS)


def test_a_candidate_far_behind_leaves_after_two_pairs() -> None:
    world = World({("fast", "process"): even(1000.0), ("slow", "process"): even(400.0)})
    best, loser = world.run([candidate("fast"), candidate("slow")])
    assert (best.engine, loser.pairs) == ("fast", 2)


@pytest.mark.parametrize(
    ("threads_per_s", "chosen"), [(1100.0, "thread"), (1020.0, "process"), (900.0, "process")]
)
def test_processes_stay_unless_threads_are_clearly_faster(threads_per_s: float, chosen: str) -> None:
    world = World({("one", "process"): even(1000.0), ("one", "thread"): even(threads_per_s)})
    best, other = world.run([candidate("one")], [candidate("one", "thread")])
    assert best.placement == chosen
    assert f"x the preferred one in {other.pairs} pairs of loops" in other.describe()


def sharded(engine: str) -> Candidate:
    return msgspec.structs.replace(candidate(engine, "thread"), shards=2)


@pytest.mark.parametrize(("shards_per_s", "shards"), [(1120.0, 2), (1080.0, 1), (900.0, 1)])
def test_shards_are_chosen_from_a_gain_of_a_tenth_on(shards_per_s: float, shards: int) -> None:
    world = World({("one", "process"): even(1000.0), ("one", "shards"): even(shards_per_s)})
    best, other = world.run([candidate("one")], sharded=[sharded("one")])
    chosen = choose_served(choose([timed("one", 1e-3)]), [best, other], provisional=False)
    assert (best.shards, chosen.shards, chosen.placement) == (shards, shards, "process")
    assert ("by 2 shards, batches of about 8" in chosen.line()) == (shards == 2)
    assert "one fp32, 2 shards, batches of 8: " in chosen.line()
    assert f"x the preferred one in {other.pairs} pairs of loops" in other.describe()


def test_a_gain_of_shards_under_many_callers_alone_is_not_enough() -> None:
    rates = {("one", "process"): even(1000.0), ("one", "shards"): lambda limit, n: 1500.0 if n > 8 else 990.0}
    best, *_ = World(rates).run([candidate("one")], sharded=[sharded("one")])
    assert best.shards == 1


def test_shards_of_the_best_candidate_alone_are_loaded_over_http_with_its_batch_limit() -> None:
    world = World(
        {
            ("slow", "process"): even(500.0),
            ("one", "process"): lambda limit, callers: 1000.0 + 10 * limit,
            ("one", "shards"): even(2000.0),
        }
    )
    best, *_ = world.run([candidate("slow"), candidate("one")], sharded=[sharded("slow"), sharded("one")])
    assert (best.shards, best.batch_limit) == (2, 32)
    assert world.sections["one shards"] == {"batch_size": 32}
    assert {(name, limit) for name, limit, _ in world.http_loops} == {("one process", 32), ("one shards", 32)}
    assert {callers for *_, callers in world.http_loops} == set(CALLERS)
    assert not world.running


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ({("one", "shards"): "it has no memory"}, "it has no memory"),
        ({("one shards", "http"): ""}, "it answers nothing over HTTP"),
        ({("one process", "http"): ""}, "it answers nothing over HTTP"),
    ],
)
def test_shards_without_a_comparison_are_refused(
    failure: Mapping[tuple[str, str], Rate | str], reason: str
) -> None:
    world = World({("one", "process"): even(1000.0), ("one", "shards"): even(2000.0), **failure})
    best, refused = world.run([candidate("one")], sharded=[sharded("one")])
    assert (best.shards, best.refused, refused.shards, refused.refused) == (1, "", 2, reason)
    assert {callers for _, callers, _ in best.rates} == set(CALLERS)
    assert not world.running


def test_threads_need_more_throughput_too_where_cpu_time_decides() -> None:
    """Idle cores make batches larger, and so the CPU time of a request less."""
    rates = {("one", "process"): even(1000.0), ("one", "thread"): even(800.0)}
    world = World(rates, cpu_s={"thread": 0.7e-3}, other_cores=0.5)
    best, *_ = world.run([candidate("one")], [candidate("one", "thread")])
    assert (best.placement, best.by_cpu) == ("process", True)


@pytest.mark.parametrize(("other_cores", "chosen"), [(0.05, "fast"), (0.5, "cheap")])
def test_beside_other_work_the_candidate_with_the_least_cpu_time_is_chosen(
    other_cores: float, chosen: str
) -> None:
    world = World(
        {("fast", "process"): even(1000.0), ("cheap", "process"): even(450.0)},
        cpu_s={"fast": 2e-3, "cheap": 1e-3},
        other_cores=other_cores,
    )
    best, *_ = world.run([candidate("fast"), candidate("cheap")])
    assert (best.engine, best.by_cpu) == (chosen, other_cores > 0.1)
    line = choose_served(choose([timed(chosen, 1e-3)]), [best], provisional=False).line()
    assert ("by CPU time: other work kept cores busy" in line) == best.by_cpu
    assert f"/s at 8 with {'1' if chosen == 'cheap' else '2'}.00 ms of CPU" in line


def test_the_cpu_time_of_measured_processes_is_no_other_work() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input(); sum(range(10_000_000)); input()"], stdin=-1
    ) as child:
        assert child.stdin is not None
        measured, unmeasured = CpuMeter([os.getpid(), child.pid]), CpuMeter([])
        child.stdin.write(b"\n")
        child.stdin.flush()
        while measured.measure().own_s < 0.1:
            pass
        # The process may have to wait for a core between two of these measurements.
        before, own, after = unmeasured.measure(), measured.measure(), unmeasured.measure()
        assert before.own_s == after.own_s == 0
        assert max(before.other_cores, after.other_cores) > own.other_cores
        child.kill()


@pytest.mark.parametrize("limit", LIMITS)
def test_the_best_batch_limit_is_chosen(limit: int) -> None:
    world = World({("one", "process"): lambda given, callers: 1000.0 - 10 * abs(given - limit)})
    (best,) = world.run([candidate("one")])
    assert best.batch_limit == limit


def test_a_candidate_that_fails_is_refused_with_its_reason() -> None:
    world = World({("broken", "process"): "it has no memory", ("sound", "process"): even(1.0)})
    best, refused = world.run([candidate("broken"), candidate("sound")])
    assert (best.engine, refused.refused) == ("sound", "it has no memory")


def test_without_time_no_further_candidate_starts_and_the_first_has_a_comparable_result() -> None:
    world = World({("one", "process"): even(1.0), ("two", "process"): even(2.0)}, start_s=3 * BUDGET_S)
    best, refused = world.run([candidate("one"), candidate("two")])
    assert (best.engine, refused.refused) == ("one", "no time was left to measure it")
    assert [callers for _, callers, _ in best.rates][:2] == list(CALLERS)


def test_slow_starts_take_no_batch_limit_from_the_race() -> None:
    world = World({("one", "process"): even(1.0)}, start_s=1.2 * BUDGET_S)
    (best,) = world.run([candidate("one")])
    assert {limit for limit, _, _ in best.rates} == set(LIMITS)


SERVED = Served("slow alone", "fp32", "thread", 8, ((8, 8, 900.0), (8, 32, 1000.0)))


def choice(*, provisional: bool = False) -> Choice:
    among = choose([timed("fast alone", 1e-3), timed("slow alone", 2e-3)])
    return choose_served(among, [SERVED], provisional=provisional)


def test_the_result_of_the_race_wins_over_the_timed_runs() -> None:
    chosen = choice()
    assert (chosen.engine, chosen.placement, chosen.batch_limit) == ("slow alone", "thread", 8)
    assert "slow alone fp32 by thread, batches of about 8 [" in chosen.line()
    assert "served by slow alone fp32, thread, batches of 8: 900/s at 8, 1000/s at 32" in chosen.line()
    assert "provisional" in choice(provisional=True).line()
    failed = [msgspec.structs.replace(SERVED, rates=(), refused="it is broken")]
    timed_alone = choose([timed("fast alone", 1e-3)])
    assert choose_served(timed_alone, failed, provisional=False) == timed_alone


@pytest.mark.parametrize(
    ("section", "dag", "open_keys"),
    [
        ({"batch_size": "auto", "concurrency": 2}, {}, ("batch_size", "placement")),
        ({"batch_size": 8, "concurrency": 2}, {"is_thread_op": True}, ()),
        ({"batch_size": 8, "concurrency": 2, "placement": "thread"}, {}, ()),
        ({"batch_size": "auto", "concurrency": 1}, {}, ("batch_size",)),
    ],
)
def test_named_keys_are_not_chosen(
    section: dict[str, Any], dag: dict[str, Any], open_keys: tuple[str, ...]
) -> None:
    config = load_config({"http_port": 9292, "dag": dag, "op": {"model": section}})
    assert auto._find_open_keys(config.op["model"], config) == open_keys


def test_the_chosen_placement_is_used_where_config_yml_leaves_it_open() -> None:
    section = OpConfig.model_validate({"batch_size": "auto", "concurrency": 2})
    chosen = choice()
    assert auto.with_choice(section, chosen).placement == "auto"
    bound = msgspec.structs.replace(chosen, left_open=("placement",))
    assert auto.with_choice(section, bound).placement == "thread"
    named = section.model_copy(update={"placement": "process"})
    assert auto.with_choice(named, bound).placement == "process"


def test_a_choice_of_an_earlier_version_is_read() -> None:
    text = '{"among": [{"engine": "a", "precision": "fp32", "points": [[1, 16, 0.001]]}]}'
    old = msgspec.json.decode(text, type=Choice)
    assert (old.is_whole, old.placement, old.batch_limit, old.engine) == (True, "auto", 0, "a")


def test_rows_have_lengths_of_their_own(tmp_path: Path) -> None:
    folder = onnx_models.serving(tmp_path)
    model = load_serving_model(folder)
    generated = single_rows(model, model.directory, model.padding)
    assert [row["input_ids"].shape for row in generated] == [(1, length) for length in GENERATED_LENGTHS]
    ids = np.array([[7, 8, 9, 0], [5, 0, 0, 0]])
    np.savez(model.directory / SAMPLE_FILE, **{feed.alias: ids for feed in model.feeds})
    rows = single_rows(model, model.directory, model.padding)
    assert [row["input_ids"].tolist() for row in rows] == [[[7, 8, 9]], [[5]]]


def test_the_page_cache_of_a_control_group_counts_as_available(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"memory.max": "1000", "memory.current": "900", "memory.stat": "file 700\ninactive_file 600\n"}
    monkeypatch.setattr(
        environment, "limits", lambda file, group: iter([files[file]] if file in files else [])
    )
    assert environment.available_memory() == 700
    files["memory.max"] = "max"
    assert environment.available_memory() > 1000


def test_a_wrong_limit_of_seconds_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(auto.MAX_SECONDS, "long")
    with pytest.raises(ConfigError, match="PADDLEWHEEL_AUTO_SECONDS is 'long': write seconds"):
        auto._get_max_seconds()


def test_a_first_start_serves_each_candidate_and_stores_the_choice(tmp_path: Path) -> None:
    model = onnx_models.serving(tmp_path)
    conf = {"model_config": str(model), "engine": "onnxruntime", "thread_num": 1}
    section = {"batch_size": "auto", "concurrency": 2, "local_service_conf": conf}
    env = {auto.MAX_SECONDS: "0.5", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with ServiceProcess(APPS / "model.py", {"op": {"model": section}}, env=env) as service:
        assert "Op model: serving onnxruntime fp32 process (once for this machine)" in service.log
        assert ", provisional: measured without real rows" in service.log
    (stored,) = json.loads((model / "serving_server" / CHOICES_FILE).read_text())["choices"].values()
    assert stored["provisional"]
    assert {served["placement"] for served in stored["served"]} <= {"process", "thread"}
    assert stored["served"][0]["rates"]


@pytest.mark.parametrize(
    ("given", "with_sample", "expected"),
    [
        ({}, False, [(False, 0)]),
        ({}, True, [(True, 1), (False, 0)]),
        ({"shards": "auto"}, False, [(False, 1)]),
        ({"shards": "auto"}, True, [(True, 1), (False, 1)]),
        ({"shards": 1}, True, [(True, 0), (False, 0)]),
    ],
    ids=["no key, no sample", "no key, a sample", "auto, no sample", "auto, a sample", "1"],
)
def test_without_the_key_shards_are_compared_with_the_hooks_alone(
    given: dict[str, Any],
    with_sample: bool,
    expected: list[tuple[bool, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(auto.MAX_SECONDS)
    races: list[tuple[bool, int]] = []

    def run_race(order: TrialOrder, report: object) -> list[Served]:
        races.append((bool(order.bodies), len(order.sharded)))
        raise TrialFailed("the hooks refuse it")

    monkeypatch.setattr(auto, "run_race", run_race)
    model = onnx_models.serving(tmp_path)
    if with_sample:
        (model / "serving_server" / auto.BODIES_FILE).write_text(json.dumps(BODY))
    conf = {"model_config": str(model), "engine": "onnxruntime", "thread_num": 1}
    section = {"batch_size": "auto", "concurrency": 2, "local_service_conf": conf}
    config = load_config({"http_port": 9292, "op": {"model": section}, **given})
    shards = 1 if config.shards == 1 else 2
    resolved, _ = auto.resolved(config, auto.HookedService("", ("model",)), shards)
    assert (races, resolved.shards) == (expected, 1)


def test_a_first_start_compares_shards_and_starts_the_chosen_number(tmp_path: Path) -> None:
    model = onnx_models.serving(tmp_path)
    conf = {"model_config": str(model), "engine": "onnxruntime", "thread_num": 1}
    section = {"batch_size": "auto", "concurrency": 2, "placement": "thread", "local_service_conf": conf}
    (model / "serving_server" / auto.BODIES_FILE).write_text(json.dumps(BODY))
    env = {auto.MAX_SECONDS: "10", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with ServiceProcess(APPS / "model.py", {"op": {"model": section}}, env=env) as service:
        log = service.log
    (stored,) = json.loads((model / "serving_server" / CHOICES_FILE).read_text())["choices"].values()
    tried = [served for served in stored.get("served", []) if served.get("shards", 1) > 1]
    # A busy machine has no time for the comparison, or not even for the first instances.
    has_hooks = f"not measured with {auto.BODIES_FILE}" not in log
    if environment.usable_cores() > 1 and has_hooks and "timed runs of the model alone" not in log:
        (shards,) = tried
        assert (shards["shards"], shards.get("refused", "")) in (
            (2, ""), (2, "no time was left to measure it"), (2, "not ready in 60 s"),
        ), log  # fmt: skip
    chosen = stored.get("served", [{}])[0].get("shards", 1)
    assert ("Op model in 2 shards" in log) == (chosen == 2), log


def first_start(
    tmp_path: Path, sample: list[dict[str, Any]], limits: dict[str, Any] | None = None
) -> tuple[str, list[dict[str, Any]]]:
    """Start a service with a sample of bodies; return its log, and all choices stored until then."""
    model = tmp_path / "served_classifier"
    if not model.exists():
        onnx_models.serving(tmp_path)
    if sample:
        lines = "\n".join(map(json.dumps, sample))
        (model / "serving_server" / auto.BODIES_FILE).write_text(lines)
    conf = {"model_config": str(model), "engine": "onnxruntime", "thread_num": 1}
    section = {"batch_size": "auto", "concurrency": 1, "local_service_conf": conf}
    config = {"op": {"model": section}, "limits": limits or {}}
    env = {auto.MAX_SECONDS: "0.5", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with ServiceProcess(APPS / "model.py", config, env=env) as service:
        log = service.log
    stored = json.loads((model / "serving_server" / CHOICES_FILE).read_text())["choices"]
    return log, list(stored.values())


def test_a_sample_of_bodies_is_measured_with_the_hooks_once_it_is_there(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    ids = json.dumps([[1, 0, 1]])
    body = {"key": [*onnx_models.FEEDS, "gate"], "value": [ids, ids, ids, str(gate)]}
    hook_ran = gate.with_name("gate.waiting")
    log, (provisional,) = first_start(tmp_path, [])
    assert provisional["provisional"] and not hook_ran.exists()
    log, (_, with_hooks) = first_start(tmp_path, [body])
    assert hook_ran.exists(), "preprocess was called"
    assert "provisional" not in with_hooks and with_hooks["served"][0]["rates"]
    assert "measured without real rows" not in log


def test_a_sample_that_is_none_is_named_and_no_hook_is_called(tmp_path: Path) -> None:
    log, (choice,) = first_start(tmp_path, [{"inputs": []}])
    assert f"{auto.BODIES_FILE} line 1 has no 'key': write bodies with key and value" in log
    assert choice["provisional"]


def test_print_config_measures_the_demo_with_its_hooks(tmp_path: Path) -> None:
    stored = shutil.ignore_patterns(f"*{CHOICES_FILE}*")  # services of other tests write there
    model = Path(shutil.copytree(ROOT / "models/demo", tmp_path / "demo", ignore=stored))
    conf = {"model_config": str(model), "engine": "onnxruntime", "thread_num": 1}
    section = {"batch_size": "auto", "concurrency": 1, "local_service_conf": conf}
    (tmp_path / "config.yml").write_text(json.dumps({"http_port": 9292, "op": {"bert": section}}))
    printed = subprocess.run(
        [sys.executable, "web_service.py", "--config", tmp_path / "config.yml", "--print-config"],
        cwd=ROOT,
        env={**os.environ, auto.MAX_SECONDS: "0.5"},
        capture_output=True,
        text=True,
        check=True,
    )
    limits = "|".join(map(str, LIMITS))
    chosen = rf"served by onnxruntime fp32, batches of ({limits}): \d+/s at "
    assert re.search(chosen, printed.stdout.partition("\n")[0])
    assert "hooks are not measured" not in printed.stderr


def test_without_the_hooks_that_refuse_the_sample_the_race_goes_on(tmp_path: Path) -> None:
    log, (choice,) = first_start(tmp_path, [{"key": ["a", "b"], "value": ["of another", "service"]}])
    assert f"its hooks are not measured with {auto.BODIES_FILE}: onnxruntime fp32: " in log
    assert choice["provisional"] and choice["served"][0]["rates"]


def test_a_single_value_of_a_sample_has_the_key_of_the_service() -> None:
    bodies = ['{"key": ["text"], "value": ["a"]}', '{"key": ["x", "y"], "value": ["b", "c"]}']
    requests = _parse_bodies(bodies, Limits(), {"0": "an example"})
    assert [dict(inputs) for inputs in requests.inputs] == [{"0": "a"}, {"x": "b", "y": "c"}]


def test_instances_that_need_more_than_the_limit_of_memory_are_not_chosen(tmp_path: Path) -> None:
    log, (choice,) = first_start(tmp_path, [], {"max_memory": 1})
    assert "limits.max_memory is 1" in log
    assert "served" not in choice
