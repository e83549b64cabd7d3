"""One Op around a model, which takes and gives what the model's serving.yml says."""

import os

from pipeline import WebService
from pipeline.ops.described import DescribedOp


class DescribedService(WebService):
    def get_pipeline_response(self, read_op):
        return DescribedOp(name="model", input_ops=[read_op])


service = DescribedService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
