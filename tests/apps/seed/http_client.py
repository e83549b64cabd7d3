"""Asks the service over HTTP for each line of standard input; prints the answers, one a line."""

import json
import sys
from pathlib import Path

import httpx as requests  # the same call as in `requests`
import yaml

config = yaml.safe_load(Path("config.yml").read_text("utf-8"))
url = "http://127.0.0.1:{}/bert/prediction".format(config["http_port"])
for line in sys.stdin:
    data = {"key": ["0"], "value": [line.rstrip("\n")]}
    r = requests.post(url=url, data=json.dumps(data), timeout=60)
    print(json.dumps(r.json()))  # noqa: T201 - a client is a script
