"""An artifact as a source of pages: its name in the execution, its manifest, and its record."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.infra.drawing.charts import LARGEST, Points
from baton.tasks.artifacts import kind_of
from baton.tasks.core.job import json_lines
from baton.tasks.core.manifest import MANIFEST, RECORD, Manifest, read_manifest

PAGE_FILES = (f"{RECORD}/*", "*.json", "README.md", MANIFEST)  # files that pages show, except those of an evaluation


@dataclass(frozen=True)
class Notice:
    """What an engine reported about its artifact."""

    text: str
    invalidates: bool  # the result, so that it stands out; else it is a note


@dataclass(frozen=True)
class Source:
    name: str
    directory: Path
    manifest: Manifest

    @property
    def digest(self) -> str:
        """The shortened digest, for display."""
        return self.manifest.digest[:12]

    @property
    def label(self) -> str:
        """The label by which artifacts of one kind are distinguished (base, chat, …); by default the name."""
        return str(self.manifest.facts.get("label") or self.name)

    @property
    def family(self) -> str:
        """The artifact's shape in drawings."""
        return kind_of(self.manifest.kind).family

    def made_from(self) -> Mapping[str, str]:
        """Return the parents' digests by the names of the inputs, without those that the artifact only describes."""
        return kind_of(self.manifest.kind).relation.sources(self.manifest.digest, self.manifest.parents)

    def series(self) -> dict[str, Points]:
        """Return every metric that the engine logged, in the order of first appearance. If a resumed engine has logged
        a step twice, the later line wins."""
        by_name: dict[str, dict[float, float]] = defaultdict(dict)
        for line in self.record_lines("metrics.jsonl"):
            for name, value in line.items():
                if name not in ("step", "time") and isinstance(value, int | float) and abs(value) <= LARGEST:
                    by_name[name][float(line["step"])] = float(value)
        return {name: sorted(points.items()) for name, points in by_name.items()}

    def notices(self) -> list[Notice]:
        """Return the engine's notices for the user about the artifact."""
        lines = self.record_lines("notices.jsonl")
        return list(dict.fromkeys(Notice(str(line["text"]), line.get("invalidates") is True) for line in lines))

    def record_lines(self, name: str) -> list[dict[str, Any]]:
        """Return the objects of a .jsonl file in the record; empty if there is no such file."""
        path = self.directory / RECORD / name
        return json_lines(path) if path.exists() else []

    def record_json(self, name: str) -> Any | None:
        """Read a .json file of the record; None if there is no such file."""
        return self.content_json(f"{RECORD}/{name}")

    def content_json(self, name: str) -> Any | None:
        """Read a .json file of the artifact itself; None if there is no such file."""
        path = self.directory / name
        return json.loads(path.read_text()) if path.exists() else None


def open_source(directory: Path, name: str = "") -> Source:
    """Open the artifact in a directory. Models and evaluations are named by their labels, others are named `name`.
    Raises ArtifactError."""
    manifest = read_manifest(directory)
    label = manifest.facts.get("label")
    by_label = {"hf_model": label, "eval_report": f"eval_{label}"}
    return Source(by_label.get(manifest.kind) or name or manifest.kind, directory, manifest)
