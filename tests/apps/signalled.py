"""The echo service, which is sent a signal while its script starts it: arguments, the signal's name and when.

"import": in a library of ours that makes another error of what a handler raises; "library": in one of the
script's, which names what it made it of; "script": after that; "now": by `run_service`; "later": when the
server has taken over this process.
"""

import os
import signal
import sys
import threading

number = signal.Signals[sys.argv[1]]


class Library:
    """Has `import pipeline.config.config_file` fail as a library of C might."""

    def find_spec(self, name, path=None, target=None):
        if name == "pipeline.config.config_file":
            try:
                os.kill(os.getpid(), number)
            except KeyboardInterrupt:
                raise ImportError("the library can't be loaded") from None


if sys.argv[2] == "import":
    sys.meta_path.insert(0, Library())

from echo import EchoService  # noqa: E402

if sys.argv[2] == "library":
    try:
        os.kill(os.getpid(), number)
    except KeyboardInterrupt as exc:
        raise ImportError("initialization failed") from exc
if sys.argv[2] == "script":
    os.kill(os.getpid(), number)


class Signalled(EchoService):
    def get_pipeline_response(self, read_op):
        if sys.argv[2] == "later":
            signal.pthread_sigmask(signal.SIG_BLOCK, [number])
            signal.pthread_kill(threading.get_ident(), number)
        else:
            os.kill(os.getpid(), number)
        return super().get_pipeline_response(read_op)


service = Signalled(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
