"""Converts a trained Paddle text classifier to a serving model with its vocabulary."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convert.demo.headlines import vocabulary_text
from convert.from_paddle.export import export_layer, layer_parity
from convert.output.staging import staged, write_stamp
from convert.paddle_onnx.to_onnx import add_onnx_variant
from convert.programs.program_feeds import Feeds, ProgramTensor
from convert.proof.padding import parse_padding
from convert.proof.parity import ParityReport
from convert.proof.target import create_target
from convert.result import ConversionOptions
from convert.steps.progress import Steps
from convert.to_serving.build_serving_model import build_serving_model, store_sample

FEEDS = tuple(ProgramTensor(n, "int64", (-1, -1)) for n in ("input_ids", "token_type_ids", "attention_mask"))
FETCH_ALIAS = "logits"
PADDING = "input_ids=0,token_type_ids=0,attention_mask=0"
VOCABULARY_FILE = "vocab.txt"
_MAX_PADDED_ROWS = 24  # that prove padding


def write_trained(
    layer: Any, out: Path, source: str, *, labels: Sequence[str], rows: Sequence[Feeds], steps: Steps
) -> None:
    """Write the serving model of a trained Paddle Layer to `out`, with an ONNX copy if that can be made.

    An earlier result in `out` is replaced. source: the name of the Layer's origin, stored in convert.json.
    rows: real inputs, each a batch of one row. Raises ParityError if a step changes the outputs.
    """
    options = ConversionOptions(steps=steps)
    with staged(out) as folder:
        convert_trained(layer, folder, labels=labels, batches=rows[:8], rows=rows, options=options)
        add_onnx_variant(folder, out, options)
        write_stamp(folder, "", {"source": source})


def convert_trained(
    layer: Any,
    out: Path,
    *,
    labels: Sequence[str],
    batches: Sequence[Feeds],
    rows: Sequence[Feeds],
    options: ConversionOptions,
) -> tuple[ParityReport, ...]:
    """Write the serving model of a Layer that takes FEEDS and returns scores of classes; return the reports.

    Each comparison uses `batches` and random ids, or the sample of `options` instead of random ids. Padding
    is proven on some of `rows`, which are batches of one row. `rows` are stored beside the model as its
    sample.
    """
    with tempfile.TemporaryDirectory() as scratch:
        inference = Path(scratch)
        options.steps.step("Dynamic to static")
        program = export_layer(layer, FEEDS, inference)
        vocabulary_file = inference / VOCABULARY_FILE
        vocabulary_file.write_text(vocabulary_text(), encoding="utf-8")
        proof_batches = [*batches, *options.proof_inputs.batches(create_target(program))]
        options.steps.step("Parity of dynamic and static")
        exported = layer_parity(layer, program, FEEDS, proof_batches, options.tolerance)
        exported.require()
        pads = parse_padding(PADDING, program.feeds)
        by_length = sorted(rows, key=lambda row: row["input_ids"].shape[1])
        reports = build_serving_model(
            program,
            out,
            aliases=(FETCH_ALIAS,),
            batches=proof_batches,
            rows=by_length[:: max(1, len(rows) // _MAX_PADDED_ROWS)],
            pads=pads,
            labels=labels,
            files=(vocabulary_file,),
            earlier=(exported,),
            options=options,
        )
    (out / VOCABULARY_FILE).write_text(vocabulary_text(), encoding="utf-8")
    store_sample(out, rows, pads)
    return reports
