"""A network partition between a front and an agent in another network namespace."""

from __future__ import annotations

from pathlib import Path

from tests.support.agent_process import run_on_agents
from tests.support.echo_load import ENOUGH, EchoLoad
from tests.support.network_namespace import NetworkNamespace
from tests.support.service_process import PATIENCE_S, wait_until

START_S = 2 * PATIENCE_S
CONFIG = {
    "dag": {"is_thread_op": False, "request_timeout": START_S},
    "op": {"echo": {"concurrency": 2, "start_timeout": START_S}},
}


def test_a_partition_fails_no_request_and_both_nodes_answer_after_it(tmp_path: Path) -> None:
    with (
        NetworkNamespace() as node,
        run_on_agents(tmp_path, CONFIG, nodes={"timeout": 2.0}, namespace=node) as (service, (far, _)),
        EchoLoad(service) as load,
    ):
        load.wait_for_answers(2, "both nodes answer", START_S)
        (cut_off,) = map(str, far.worker_pids())
        with node.partitioned():
            service.wait_for_log("sent nothing for 2 s")
            wait_until(lambda: "sent nothing for 2 s" in far.log, "the agent has lost the front, too")
            answered = load.workers.total()
            wait_until(lambda: load.workers.total() > answered + ENOUGH, "the other node goes on")
        known = frozenset(load.workers)
        assert cut_off in known
        load.wait_for_answers(1, "a new worker of the lost node answers", START_S, known)
        (worker,) = map(str, far.worker_pids())
        assert worker not in known
    assert load.failures == []
