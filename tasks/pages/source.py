"""An artifact as pages read it: its name in the execution, its manifest, and its record."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.drawing.charts import LARGEST, Points
from tasks.artifacts import kind_of
from tasks.core.job import json_lines
from tasks.core.manifest import MANIFEST, RECORD, Manifest, read_manifest

PAGE_FILES = (f"{RECORD}/*", "*.json", "README.md", MANIFEST)  # what pages show of an artifact, except of an evaluation


@dataclass(frozen=True)
class Source:
    name: str
    directory: Path
    manifest: Manifest

    @property
    def digest(self) -> str:
        """Short, for display."""
        return self.manifest.digest[:12]

    @property
    def label(self) -> str:
        """Distinguishes artifacts of one kind (base, chat, …); by default its name."""
        return str(self.manifest.facts.get("label") or self.name)

    @property
    def family(self) -> str:
        """Its shape in drawings."""
        return kind_of(self.manifest.kind).family

    def made_from(self) -> Mapping[str, str]:
        """Its parents' digests by the inputs' names, without what it only describes."""
        return kind_of(self.manifest.kind).relation.sources(self.manifest.digest, self.manifest.parents)

    def series(self) -> dict[str, Points]:
        """Every metric that the engine logged, in the order of first appearance. A resumed engine may have logged a
        step twice: the later line wins."""
        by_name: dict[str, dict[float, float]] = defaultdict(dict)
        for line in self.record_lines("metrics.jsonl"):
            for name, value in line.items():
                if name not in ("step", "time") and isinstance(value, int | float) and abs(value) <= LARGEST:
                    by_name[name][float(line["step"])] = float(value)
        return {name: sorted(points.items()) for name, points in by_name.items()}

    def notices(self) -> list[str]:
        """What the user must know about the artifact, in its engine's words."""
        return list(dict.fromkeys(str(line["text"]) for line in self.record_lines("notices.jsonl")))

    def record_lines(self, name: str) -> list[dict[str, Any]]:
        """The objects of a .jsonl file in the record; empty if there is no such file."""
        path = self.directory / RECORD / name
        return json_lines(path) if path.exists() else []

    def record_json(self, name: str) -> Any | None:
        """A .json file of the record, or None if there is no such file."""
        return self.content_json(f"{RECORD}/{name}")

    def content_json(self, name: str) -> Any | None:
        """A .json file of the artifact itself, or None if there is no such file."""
        path = self.directory / name
        return json.loads(path.read_text()) if path.exists() else None


def open_source(directory: Path, name: str = "") -> Source:
    """The artifact in a directory, by its manifest: models and evaluations are named by their labels, others `name`.
    Raises ArtifactError."""
    manifest = read_manifest(directory)
    label = manifest.facts.get("label")
    by_label = {"hf_model": label, "eval_report": f"eval_{label}"}
    return Source(by_label.get(manifest.kind) or name or manifest.kind, directory, manifest)
