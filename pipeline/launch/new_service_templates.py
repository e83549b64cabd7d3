"""Templates of a new service's web_service.py and config.yml, filled in by new_service.py."""

from __future__ import annotations

from string import Template
from typing import NamedTuple

SCRIPT = Template('''\
"""The service $name. `python3 web_service.py` serves it as config.yml says; --help tells the options.

    $question
"""

from pathlib import Path

from pipeline import WebService
from pipeline.ops.described import DescribedOp
from pipeline.script import prepare_from_arguments

CONFIG = Path(__file__).resolve().parent / "config.yml"


class ModelOp(DescribedOp):
    """Takes $inputs, and gives $outputs.

    So says $described, as far as it says anything; these names are what clients see.
    """

    def preprocess(self, input_dicts, data_id, log_id):
        """A request to the model's feeds, one row or several. Raise pipeline.InvalidInput to refuse it."""
        (inputs,) = input_dicts.values()  # {name: value} of the request
        # Edit here: look at `inputs`, change them, or make {feed: array} of them yourself.
        return self.feeds_of(inputs)

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        """The model's rows for this request to its answer: arrays alone, or str values alone."""
        # Edit here: a threshold, other names, what else your clients want to know.
        return self.answer_of(fetch_dict)


class ModelService(WebService):
    def get_pipeline_response(self, read_op):
        return ModelOp(name="$name", input_ops=[read_op]$description)


if __name__ == "__main__":
    service = ModelService(name="$name")
    prepare_from_arguments(service, CONFIG)
    service.run_service()
''')

CONFIG = Template("""\
# The service $name. `python3 web_service.py --print-config` prints every key with its value.

http_port: $http_port# POST /$name/prediction; also /health/live, /health/ready, /metrics
rpc_port: $rpc_port# gRPC: baidu.paddle_serving.pipeline_serving.PipelineService

dag:
  http_errors: status   # 4xx and 5xx for errors; `original` answers 200 with err_no, as Paddle Serving
  request_timeout: 30   # seconds

op:
  $key:
    concurrency: 1      # $instances
    batch_size: auto    # as many requests in a predictor batch as cost the least here; none waits for more
$padding
    local_service_conf:
      engine: auto      # the fastest of those that can run the model here, timed at the first start
      client_type: local_predictor
      model_config: $model
      device_type: 0    # $devices
      devices: ""       # cards, e.g. "0,1"
      thread_num: 2     # $threads
      precision: fp32   # $precision
""")


class EngineComments(NamedTuple):
    """Comments of config.yml that depend on the engine of the model's files."""

    instances: str
    devices: str
    threads: str
    precision: str


PROCESSES = EngineComments(
    instances="instances, a process each with its own copy of the model",
    devices="0 CPU, 1 GPU, 2 TensorRT",
    threads="CPU threads of an instance",
    precision="bf16 where the CPU has it; auto: where it is faster and proven to answer alike",
)
ENGINE_COMMENTS = {
    "onnxruntime": EngineComments(
        instances="instances: threads that share one copy of the model; with OpenVINO a process each",
        devices="0 CPU, 1 GPU, 2 TensorRT",
        threads="CPU threads, which instances in one process share",
        precision="without effect in ONNX Runtime on the CPU; auto: bf16 of OpenVINO where proven alike",
    ),
    "openvino": PROCESSES._replace(devices="0 CPU: OpenVINO uses no other device"),
}
