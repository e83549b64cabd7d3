"""A script with effects of its own: an HTTP server at the module level, and a handler of SIGTERM.

EFFECTS_PORT: the server's port. EFFECTS_FILE: the handler adds a line to this file.
"""

import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from pipeline import Op, WebService

FILE = Path(os.environ["EFFECTS_FILE"])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = str(os.getpid()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(os.environ["EFFECTS_PORT"])), Handler)
Thread(target=server.serve_forever, daemon=True).start()


def stop(number, frame):
    with FILE.open("a") as file:
        file.write(f"{signal.Signals(number).name} after {NamedOp.answered} of {os.getpid()}\n")
    sys.exit(0)


signal.signal(signal.SIGTERM, stop)


class NamedOp(Op):
    answered = 0

    def preprocess(self, input_dicts, data_id, log_id):
        NamedOp.answered += 1
        return {"pid": str(os.getpid())}


class Service(WebService):
    def get_pipeline_response(self, read_op):
        return NamedOp("named", [read_op])


service = Service(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
