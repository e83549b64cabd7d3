"""Prints the software bill of materials of the serving environment, as CycloneDX 1.6: `make sbom` writes it.

It lists the packages of serving.txt with their versions, licences and dependencies, as they are installed.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent
_PIN = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


def make_sbom(lock: Path, project: Path) -> dict[str, Any]:
    """Return the document. lock: pins of the serving environment. project: pyproject.toml."""
    pins = dict(_PIN.findall(lock.read_text(encoding="utf-8")))
    refs = {_normalised(name): _purl(name, version) for name, version in pins.items()}
    about = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    # The project is installed from its sources, whose version its package tells.
    own = {"type": "application", "name": about["name"], "version": importlib.metadata.version(about["name"])}
    own["bom-ref"] = own["purl"] = _purl(own["name"], own["version"])
    components = [_component(name, version) for name, version in pins.items()]
    dependencies = [{"ref": own["bom-ref"], "dependsOn": _depends_on(own["name"], refs)}]
    dependencies += [{"ref": refs[_normalised(name)], "dependsOn": _depends_on(name, refs)} for name in pins]
    content = json.dumps(components, sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # The same for the same packages.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {"component": own},
        "components": components,
        "dependencies": dependencies,
    }


def _component(name: str, version: str) -> dict[str, Any]:
    purl = _purl(name, version)
    component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    metadata = importlib.metadata.metadata(name)
    if expression := metadata.get("License-Expression"):
        component["licenses"] = [{"expression": expression}]
    elif names := _license_names(metadata):
        component["licenses"] = [{"license": {"name": license_name}} for license_name in names]
    return component


def _license_names(metadata: Any) -> list[str]:
    """Return the licences of older metadata: the classifiers, else the first line of the free text."""
    classifiers = [text for text in metadata.get_all("Classifier") or () if text.startswith("License :: ")]
    names = sorted({text.rpartition(" :: ")[2] for text in classifiers} - {"OSI Approved"})
    text = (metadata.get("License") or "").strip()
    return names or ([text.splitlines()[0]] if text else [])


def _depends_on(name: str, refs: dict[str, str]) -> list[str]:
    """Return the locked packages that an installed package requires here, with its extras."""
    requirements = map(Requirement, importlib.metadata.requires(name) or ())
    used = [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    return sorted({refs[_normalised(one.name)] for one in used if _normalised(one.name) in refs})


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{_normalised(name)}@{version}"


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    json.dump(make_sbom(HERE / "serving.txt", HERE.parent / "pyproject.toml"), sys.stdout, indent=2)
    sys.stdout.write("\n")
