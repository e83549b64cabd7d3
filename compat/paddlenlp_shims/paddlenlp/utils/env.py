"""The folders where PaddleNLP keeps what it has downloaded. Nothing is made or downloaded here."""

import os
from pathlib import Path

PPNLP_HOME = os.environ.get("PPNLP_HOME") or str(Path("~/.paddlenlp").expanduser())
MODEL_HOME = str(Path(PPNLP_HOME, "models"))
DATA_HOME = str(Path(PPNLP_HOME, "datasets"))
