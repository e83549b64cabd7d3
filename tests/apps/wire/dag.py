"""An app written for Paddle Serving: Ops that note their path, joined in a diamond or with a jump."""

import os
from pathlib import Path

import yaml

from paddle_serving_server.web_service import Op, WebService


class Step(Op):
    """Appends its name to the path; the key `cmd` makes the Op it names refuse."""

    def preprocess(self, input_dicts, data_id, log_id):
        inputs = dict(next(iter(input_dicts.values())))
        cmd = inputs.get("cmd", "")
        if cmd == f"{self.name}_raise":
            raise ValueError(f"boom in {self.name}")
        if cmd == f"{self.name}_prod":
            return inputs, False, 55, f"prod in {self.name}"
        return inputs, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        inputs = next(iter(input_dicts.values()))
        path = f"{inputs.get('path', '')}>{self.name}"
        return {"cmd": inputs.get("cmd", ""), "path": path, "from": ",".join(sorted(input_dicts))}, None, ""


class Jumping(Step):
    def check_jumping(self, input_data):
        channel_data = next(iter(input_data.values()))
        return channel_data.parse()["cmd"] == "jump"


class Join(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        return {"in": dict(input_dicts)}, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        paths = [inputs["path"] for inputs in input_dicts.values()]
        return {"order": ",".join(input_dicts), "paths": "|".join(paths)}, None, ""


class DagService(WebService):
    def get_pipeline_response(self, read_op):
        if os.environ["DAG"] == "diamond":
            branches = [Step(name, input_ops=[read_op]) for name in ("a", "b")]
            return Join("c", input_ops=branches)
        a = Jumping("a", input_ops=[read_op])
        b = Step("b", input_ops=[a])
        a.set_jump_to_ops([b])
        return Step("c", input_ops=[b])


if __name__ == "__main__":
    config = yaml.safe_load(Path(os.environ["SERVICE_CONFIG"]).read_text("utf-8"))
    service = DagService(name="dag")
    service.prepare_pipeline_config(yml_dict=config)
    service.run_service()
