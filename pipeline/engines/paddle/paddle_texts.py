"""Runs programs that take texts: their tokenizer by itself, then the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import numpy as np

from pipeline.engines.feeds import Array
from pipeline.engines.paddle.paddle_import import inference
from pipeline.engines.paddle.text_program import Half, TextProgram

_TRIAL = ["a", "a a a a a a a a a"]
_NEAR = 1e-3  # of an output's largest value: far more than rounding, far less than another answer


class Runs(Protocol):
    """What runs feeds: Session or KeptTensors."""

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]: ...


def build_text_config(half: Half) -> inference.Config:
    """A configuration of Paddle Inference that loads this half of a program."""
    config = inference.Config()
    config.set_model_buffer(half.program, len(half.program), half.params, len(half.params))
    return config


class Tokenizing:
    """Runs the tokenizer, then the rest with the ids that it makes.

    texts, fetched: aliases of the tokenizer's feeds, and of outputs that are its own. Ids and segments are
    int64 [n, longest]: the operator fills shorter rows with 0.
    """

    def __init__(
        self, whole: TextProgram, texts: Mapping[str, str], fetched: Mapping[str, str], rest: Runs | None
    ) -> None:
        config = build_text_config(whole.tokenizer)
        config.disable_gpu()
        config.disable_glog_info()
        config.switch_ir_optim(False)
        if config.mkldnn_enabled():
            config.disable_mkldnn()
        self._predictor = inference.create_predictor(config)
        self._inputs = {alias: self._predictor.get_input_handle(name) for alias, name in texts.items()}
        self._outputs = {name: self._predictor.get_output_handle(name) for name in whole.tokens}
        self._fetched = fetched
        self._rest = rest

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run feeds as a `Session` does: by alias in and out. Feeds of texts are arrays of str [n]."""
        for alias, handle in self._inputs.items():
            handle.copy_from_cpu(feeds[alias].tolist())
        self._predictor.run()
        tokens = {name: handle.copy_to_cpu() for name, handle in self._outputs.items()}
        fetches = {alias: tokens[name] for alias, name in self._fetched.items()}
        if self._rest is not None:
            fetches |= self._rest.run({**feeds, **tokens})
        return fetches


def bears_padding(run: Callable[[Mapping[str, Array]], Mapping[str, Array]], texts: Iterable[str]) -> bool:
    """Whether a short text is answered the same beside a longer one, whose length it is padded to.

    texts: the feeds, of a program that has no others.
    """
    alone, together = (
        run({alias: np.array(rows, object) for alias in texts}) for rows in (_TRIAL[:1], _TRIAL)
    )
    return all(
        together[name].shape == (2, *fetch.shape[1:])
        and np.allclose(together[name][:1], fetch, atol=_NEAR * (np.abs(fetch).max(initial=0) or 1), rtol=0)
        for name, fetch in alone.items()
    )
