"""What was found of each model, in one file of JSON."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct):
    """Of one model. right: it answers as its framework does, or is refused as it should be.

    form: what the serving model holds. first_status: of the request that `new` prints. endpoints: by name the
    largest difference, as a share of the largest value, or a sentence. refusal: why it was not converted, or
    what went wrong.
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
        """Over all endpoints; None where one has no answer."""
        found = [value for value in self.endpoints.values() if isinstance(value, float)]
        return max(found) if found and len(found) == len(self.endpoints) else None


class Findings(msgspec.Struct):
    """A run. versions: of the frameworks."""

    machine: str = ""
    versions: dict[str, str] = {}
    models: list[Finding] = []

    def put(self, finding: Finding) -> None:
        """In place of what was found of this model before."""
        for number, known in enumerate(self.models):
            if (known.family, known.name) == (finding.family, finding.name):
                self.models[number] = finding
                return
        self.models.append(finding)
