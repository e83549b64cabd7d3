"""The folders where PaddleNLP stores its downloads; this module neither creates nor fills them."""

import os
from pathlib import Path

PPNLP_HOME = os.environ.get("PPNLP_HOME") or str(Path("~/.paddlenlp").expanduser())
MODEL_HOME = str(Path(PPNLP_HOME, "models"))
DATA_HOME = str(Path(PPNLP_HOME, "datasets"))
