"""Metrics that models count themselves, as their workers tell them, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.messages.messages import OwnFamily
from pipeline.process.isolation import isolated

_Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@isolated(b"")
def own_metrics(told: Iterable[Iterable[OwnFamily]]) -> bytes:
    """told: by worker. What several count under the same labels is added up; of gauges the last counts."""
    families: dict[str, OwnFamily] = {}
    samples: dict[str, _Samples] = {}
    for of_worker in told:
        for family in of_worker:
            known = families.setdefault(family.name, family)
            if known.kind == family.kind:
                _add(samples.setdefault(family.name, {}), family)
    return "".join(_text(family, samples[name]) for name, family in families.items()).encode()


def _add(samples: _Samples, family: OwnFamily) -> None:
    for suffix, labels, value in family.samples:
        key = suffix, tuple(sorted(labels.items()))
        samples[key] = value if family.kind == "gauge" else samples.get(key, 0.0) + value


def _text(family: OwnFamily, samples: _Samples) -> str:
    told = family.description.replace("\\", r"\\").replace("\n", r"\n")
    lines = [f"# HELP {family.name} {told}\n# TYPE {family.name} {family.kind}\n"]
    for (suffix, labels), value in samples.items():
        pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
        lines.append(f"{family.name}{suffix}{f'{{{pairs}}}' if pairs else ''} {value:.17g}\n")
    return "".join(lines)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
