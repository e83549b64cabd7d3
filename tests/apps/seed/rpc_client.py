"""Asks the service over gRPC for each line of standard input; prints the answers, one a line."""

import sys
from pathlib import Path

import yaml

from paddle_serving_server.pipeline import PipelineClient

config = yaml.safe_load(Path("config.yml").read_text("utf-8"))
client = PipelineClient()
client.connect(["127.0.0.1:{}".format(config["rpc_port"])])
for line in sys.stdin:
    ret = client.predict(feed_dict={"0": line.rstrip("\n")}, fetch=["logits"])
    print(dict(zip(ret.key, ret.value, strict=True)), ret.err_no)  # noqa: T201 - a client is a script
