"""Results for each model, in one JSON file."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct):
    """Result of one model.

    right: the model answers as its framework does, or is refused as it should be. form: format of the serving
    model. first_status: of the request that `new` prints. endpoints: by name the largest difference, as a
    share of the largest value, or an error message. refusal: why it was not converted, or the error.
    """

    name: str
    family: str
    convert_s: float = 0.0
    route: list[str] = []
    form: str = ""
    first_status: int = 0
    endpoints: dict[str, float | str] = msgspec.field(default_factory=dict, name="doors")
    refusal: str = ""
    right: bool = False

    @property
    def largest(self) -> float | None:
        """Return the largest difference over all endpoints; None if one gave no answer."""
        found = [value for value in self.endpoints.values() if isinstance(value, float)]
        return max(found) if found and len(found) == len(self.endpoints) else None


class Findings(msgspec.Struct):
    """Results of a run. versions: of the frameworks."""

    machine: str = ""
    versions: dict[str, str] = {}
    models: list[Finding] = []

    def add(self, finding: Finding) -> None:
        """Add a result in place of the model's former result."""
        for number, known in enumerate(self.models):
            if (known.family, known.name) == (finding.family, finding.name):
                self.models[number] = finding
                return
        self.models.append(finding)
