"""Attention masks for transformers that can be exported. In the conversion environment only.

transformers makes masks by torch.vmap. The exporters of ONNX and TorchScript can't follow it: they fail with
"unordered_map::at" or keep the lengths of the example. Broadcasting makes equal masks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

_MODULE, _MASK = "transformers.masking_utils", "sdpa_mask"  # eager attention uses it, too


def make_masks_by_broadcasting() -> None:
    """Replace the mask function of transformers in this process, if it has one."""
    try:
        masking = importlib.import_module(_MODULE)
    except ImportError:  # before 4.53 there is none
        return
    if hasattr(masking, _MASK):
        setattr(masking, _MASK, _by_broadcasting(masking))


def _by_broadcasting(masking: Any) -> Callable[..., Any]:
    def mask(
        batch_size: int,
        cache_position: Any,
        kv_length: int,
        kv_offset: int = 0,
        mask_function: Any = masking.causal_mask_function,
        attention_mask: Any = None,
        **_: Any,
    ) -> Any:
        """Return True where a query may attend to a key: [batch, 1, queries, keys]."""
        padding = masking.prepare_padding_mask(attention_mask, kv_length, kv_offset, _slice=False)
        if padding is not None:
            mask_function = masking.and_masks(mask_function, masking.padding_mask_function(padding))
        device = cache_position.device
        rows = torch.arange(batch_size, device=device)[:, None, None, None]
        heads = torch.arange(1, device=device)[None, :, None, None]
        keys = torch.arange(kv_length, device=device) + kv_offset
        return mask_function(rows, heads, cache_position[None, None, :, None], keys[None, None, None, :])

    return mask
