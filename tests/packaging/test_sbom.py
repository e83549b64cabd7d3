"""`make sbom`: the bill of materials has every locked package, and each reference in it leads somewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

PURL = re.compile(r"pkg:pypi/[a-z0-9-]+@[0-9][0-9a-z.]*")
KEYS = {
    "$schema",
    "bomFormat",
    "specVersion",
    "serialNumber",
    "version",
    "metadata",
    "components",
    "dependencies",
}


def test_the_bill_of_materials_lists_the_serving_lock(root: Path) -> None:
    command = [sys.executable, "requirements/sbom.py"]
    printed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    sbom = json.loads(printed)
    assert sbom.keys() == KEYS
    assert (sbom["bomFormat"], sbom["specVersion"], sbom["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", sbom["serialNumber"])
    lock = (root / "requirements/serving.txt").read_text("utf-8")
    pins = set(re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE))
    components = sbom["components"]
    assert {(one["name"], one["version"]) for one in components} == pins
    for one in components:
        assert one["type"] == "library"
        assert PURL.fullmatch(one["purl"])
        assert all(("expression" in licence) != ("license" in licence) for licence in one.get("licenses", ()))
    own = sbom["metadata"]["component"]
    refs = [own["bom-ref"], *(one["bom-ref"] for one in components)]
    assert len(set(refs)) == len(refs)
    assert [entry["ref"] for entry in sbom["dependencies"]] == refs
    assert all(set(entry["dependsOn"]) <= set(refs) for entry in sbom["dependencies"])
    by_ref = {entry["ref"].partition("@")[0]: entry["dependsOn"] for entry in sbom["dependencies"]}
    assert any(ref.startswith("pkg:pypi/numpy@") for ref in by_ref["pkg:pypi/onnxruntime"])
    assert by_ref[own["bom-ref"].partition("@")[0]]
