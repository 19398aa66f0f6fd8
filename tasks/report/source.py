"""One artifact as a report sees it: its name in the run, its manifest, and its record."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.charts import Points
from tasks.manifest import RECORD, Manifest, read_manifest

LARGEST = 1e300  # beyond it, and not a number, is nothing to draw


@dataclass(frozen=True)
class Source:
    name: str
    directory: Path
    manifest: Manifest

    @property
    def digest(self) -> str:
        """Short, for people."""
        return self.manifest.digest[:12]

    @property
    def label(self) -> str:
        """What tells artifacts of one kind apart (base, sft …); else the name in the run."""
        return str(self.manifest.facts.get("label") or self.name)

    def series(self) -> dict[str, Points]:
        """Every metric that the engine streamed, in the order of first appearance. A resumed engine
        may have written a step twice: the later line counts."""
        by_name: dict[str, dict[float, float]] = defaultdict(dict)
        for line in self.record_lines("metrics.jsonl"):
            for name, value in line.items():
                if name not in ("step", "time") and isinstance(value, int | float) and abs(value) <= LARGEST:
                    by_name[name][float(line["step"])] = float(value)
        return {name: sorted(points.items()) for name, points in by_name.items()}

    def record_lines(self, name: str) -> list[dict[str, Any]]:
        """The objects of a .jsonl file in the record; none when the engine did not write one. An engine
        that was killed and started again may have left half a line among them."""
        return read_lines(self.directory / RECORD / name, half_lines=True)

    def record_json(self, name: str) -> Any | None:
        """A .json file of the record, or None when the engine did not write one."""
        return self.content_json(f"{RECORD}/{name}")

    def content_json(self, name: str) -> Any | None:
        """A .json file of the artifact itself, or None when it has none of that name."""
        path = self.directory / name
        return json.loads(path.read_text()) if path.exists() else None


def open_source(directory: Path, name: str = "") -> Source:
    """The artifact in a directory, by its manifest. Raises ArtifactError."""
    manifest = read_manifest(directory)
    return Source(name or manifest.kind, directory, manifest)


def read_lines(path: Path, *, half_lines: bool = False) -> list[dict[str, Any]]:
    """The objects of a .jsonl file, none when it is not there; `half_lines` are passed over."""
    if not path.exists():
        return []
    found = []
    with path.open() as stream:
        for line in stream:
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                if not half_lines:
                    raise
    return found
