"""docs/ops.md does what it says, and lists every public attribute and hook of Op."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline import Op, OpRequest
from tests.support.followed_documents import Reader, blocks_of
from tests.support.service_process import ROOT

PAGES = PAGE, CHINESE = [ROOT / "docs" / name for name in ("ops.md", "ops_zh.md")]
OF_REMOTE_SERVICES = {"set_pack_tensor_format", "packs_tensors"}
# Of models in a repository.
INNER = {"request_runner", "ragged_inputs", "reshapes", "given_options", "sequence_tensors", "steps"}


def test_both_services_answer_as_shown(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.follow(PAGE)
    assert len(reader.answers) == 3
    for answer, shown in reader.answers:
        assert (answer.status, answer.json) == (200, shown)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_attribute_hook_and_argument_is_listed(page: Path) -> None:
    text = page.read_text("utf-8")
    listed = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", text))))
    names = {name for name in {*vars(Op), *Op.__annotations__, *vars(Op(name="a"))} if name[0] != "_"}
    arguments = set(Op.__init__.__annotations__) - {"return"}
    fields = set(OpRequest.__struct_fields__) - {"correlation_id", "flags", "outputs"}
    setters = {"set_input_ops", "set_jump_to_ops"}  # beside the arguments
    assert names | arguments | fields <= listed | OF_REMOTE_SERVICES | INNER | setters


def test_both_languages_show_the_same_blocks() -> None:
    assert blocks_of(PAGE) == blocks_of(CHINESE)
