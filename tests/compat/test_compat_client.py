"""What clients and benchmark scripts of Paddle Serving import, and what is said of its C++ server's parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.test_compat_imports import run_python
from tests.support import old_models
from tests.support.service_process import APPS, ROOT, ServiceProcess

BENCHMARK = """
import sys

import numpy as np
from paddle_serving_client.pipeline import PipelineClient
from paddle_serving_client.utils import MultiThreadRunner, benchmark_args, show_latency

sys.argv += ["--thread", "3", "--endpoint", "127.0.0.1:{port}"]
args = benchmark_args()


def run_rpc(idx, resource):
    client = PipelineClient()
    client.connect([args.endpoint])
    futures = [client.predict({{"cmd": "str2"}}, fetch=["a"], asyn=True, log_id=idx) for _ in range(20)]
    right = [f.result().value == ["1", "2"] for f in futures]
    assert client.predict(feed_dict={{"cmd": "str2"}}, profile=True).err_no == 0
    return [[idx] * sum(right), [resource["turns"]]]


def nothing(idx, resource):
    pass


if __name__ == "__main__":
    counts, turns = MultiThreadRunner().run(run_rpc, args.thread, {{"turns": 3}})
    print(sorted(set(counts)), len(counts), turns)
    print(MultiThreadRunner().run(nothing, 2, None))
    show_latency([1.0, 2.0, 3.0])
"""

FLASK_ENDPOINT = """
from paddle_serving_server.web_service import WebService

service = WebService(name="imdb")
service.load_model_config("imdb_model")
"""

DESCRIPTION = """
import sys
import google.protobuf.text_format
from paddle_serving_server.proto import general_model_config_pb2 as m_config

with open({!r}) as f:
    model_var = google.protobuf.text_format.Merge(str(f.read()), m_config.GeneralModelConfig())
(feed,), (fetch,) = model_var.feed_var, model_var.fetch_var
print(feed.alias_name, feed.is_lod_tensor, feed.feed_type, list(feed.shape))
print(fetch.alias_name, fetch.is_lod_tensor, fetch.fetch_type, list(fetch.shape))
"""


def test_a_benchmark_script_runs_its_clients_side_by_side(tmp_path: Path) -> None:
    probe = APPS / "wire" / "probe.py"
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}"}
    with ServiceProcess(probe, name="probe", arguments=["{config}"], env=env) as service:
        done = run_python(BENCHMARK.format(port=service.rpc_port), tmp_path)
    assert done.stdout.splitlines() == ["[1, 2, 3] 60 [3, 3, 3]", "None"], done.stderr
    latencies = done.stderr[done.stderr.index("latency:") :].splitlines()
    assert latencies[:3] == ["latency:", "mean: 2.0ms", "median: 2.0ms"]
    assert [line.partition(":")[0] for line in latencies[3:]] == ["80_percent", "90_percent", "99_percent"]


def test_an_app_reads_the_description_of_its_model_itself(model_folder: Path, tmp_path: Path) -> None:
    conf = old_models.bag_of_words(model_folder) / "serving_server_conf.prototxt"
    done = run_python(DESCRIPTION.format(str(conf)), tmp_path)
    assert done.stdout.splitlines() == ["words True 0 [-1]", "prediction False 1 [2]"], done.stderr


@pytest.mark.parametrize(
    ("code", "error", "remedy"),
    [
        ("from paddle_serving_client import Client\nClient()", "Client", "pipeline.PipelineClient"),
        ("from paddle_serving_client import HttpClient\nHttpClient()", "HttpClient", "/{name}/{method}"),
        ("from paddle_serving_server import OpMaker, Server", "OpMaker", "WebService and Op"),
        (FLASK_ENDPOINT, "WebService.load_model_config", "get_pipeline_response"),
    ],
    ids=["Client", "HttpClient", "OpMaker", "WebService"],
)
def test_parts_of_the_cpp_server_say_what_to_use_instead(
    code: str, error: str, remedy: str, tmp_path: Path
) -> None:
    done = run_python(code, tmp_path)
    assert done.returncode == 1
    sentence = done.stderr.splitlines()[-1]
    assert error in sentence
    assert remedy in sentence
    assert "is not part of Paddlewheel" in sentence


def test_the_reader_of_profiles_says_where_timings_are(tmp_path: Path) -> None:
    done = run_python("from paddle_serving_server.pipeline import Analyst", tmp_path)
    assert "timings of each Op are at /metrics" in done.stderr.splitlines()[-1]
