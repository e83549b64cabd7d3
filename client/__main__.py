"""`python -m client` prints the commands of the client package."""

from __future__ import annotations

import sys

COMMANDS = """Clients of a running service. Each has --help:

  python3 -m client.http_client "a text"         asks over HTTP
  python3 -m client.rpc_client "a text"          asks over gRPC
  python3 -m client.voice_activity TALK.wav      streams a wav file, and prints the segments with speech
  python3 -m client.speech_recognition TALK.wav  sends a wav file, whole or as a stream, and prints its text
  python3 -m client.load --threads 20            loads a service at any of its endpoints, and prints latencies

In Python: client.http_client.HttpClient, client.rpc_client.RpcClient, client.pipeline_client.PipelineClient.
"""

if __name__ == "__main__":
    asks = sys.argv[1:] in ([], ["-h"], ["--help"])
    (sys.stdout if asks else sys.stderr).write(COMMANDS)
    sys.exit(0 if asks else 2)
