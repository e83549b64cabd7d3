"""Imports Paddle quietly: its native log, its wait policy and its warnings are settled before it loads."""

from __future__ import annotations

import os
import warnings

# Only while unset, so that a user may ask for more. 2 lets errors through.
os.environ.setdefault("GLOG_minloglevel", "2")
# Spinning OpenMP threads would starve the other processes of the service between two runs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # among others, advice to install ccache
    import paddle
    from paddle import inference

__all__ = ["inference", "paddle"]
