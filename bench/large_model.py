"""A PyTorch classifier of 2.46 GB, more than fits into one protobuf: `python -m bench.convert large`."""

from __future__ import annotations

from typing import Any

import torch

WORDS, SIZE = 400_000, 768


class Large(torch.nn.Module):
    """A classifier of input_ids and attention_mask [batch, length].

    Logits [batch, 3] come from a masked mean.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.word = torch.nn.Embedding(WORDS, SIZE)
        self.context = torch.nn.Embedding(WORDS, SIZE)
        self.out = torch.nn.Linear(SIZE, 3)

    def forward(self, input_ids: Any, attention_mask: Any) -> dict[str, Any]:
        mask = attention_mask.float().unsqueeze(-1)
        states = self.word(input_ids) + torch.tanh(self.context(input_ids))
        return {"logits": self.out((states * mask).sum(1) / mask.sum(1))}
