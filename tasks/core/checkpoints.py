"""A folder of checkpoints; training resumes from the newest intact checkpoint.

    FOLDER/<prefix><step>/           a checkpoint, complete once its manifest is written, which is last
    FOLDER/damaged-<prefix><step>/   a checkpoint whose files do not match its manifest, kept only for inspection

Checkpoints contain pickles, so a checkpoint is read only after its files' digests match its manifest.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from baton.infra.storage.durable import remove, rename
from baton.infra.text import clause
from baton.tasks.core.manifest import MANIFEST, ArtifactError, read_manifest, wrong_files

KIND = "training_state"
DAMAGED = "damaged-"


@dataclass(frozen=True)
class CheckpointFolder:
    path: Path
    prefix: str  # a checkpoint's name is the prefix and its step

    def step(self, checkpoint: Path) -> int:
        return int(checkpoint.name.removeprefix(self.prefix))

    def complete(self) -> list[Path]:
        """Return the completely written checkpoints, oldest first."""
        return sorted((path for path in self._all() if (path / MANIFEST).exists()), key=self.step)

    def newest(self) -> Path | None:
        """Return the newest complete checkpoint whose files match its manifest, or None if there is no checkpoint.
        Removes leftovers of killed saves, and sets damaged checkpoints aside. Raises ArtifactError if all are
        damaged."""
        self.remove_incomplete()
        for path in reversed(self.complete()):
            try:
                check_files(path, wrong_files(path, read_manifest(path)))
            except ArtifactError as error:
                self.set_aside(path, error)
            else:
                return path
        self.check_not_all_damaged()
        return None

    def set_aside(self, checkpoint: Path, error: ArtifactError) -> None:
        """Rename a damaged checkpoint and log it."""
        aside = checkpoint.with_name(DAMAGED + checkpoint.name)
        shutil.rmtree(aside, ignore_errors=True)
        rename(checkpoint, aside)
        print(f"{clause(error)}. It is kept as {aside}; trying the checkpoint before it", flush=True)

    def check_not_all_damaged(self) -> None:
        """Raise ArtifactError if all checkpoints were set aside, since a run with progress must not silently start
        over."""
        if any(self.path.glob(f"{DAMAGED}*")):
            raise ArtifactError(
                f"{self.path}: every checkpoint is damaged. Restore one under its old name, or delete the folder "
                "to start over at step 1"
            )

    def remove_incomplete(self) -> None:
        """Remove leftovers of killed saves. This is safe only while no process is writing."""
        for path in self._all():
            if not (path / MANIFEST).exists():
                remove(path)

    def remove_all(self) -> None:
        """Remove the folder with its contents."""
        remove(self.path)

    def _all(self) -> list[Path]:
        name = re.compile(rf"{re.escape(self.prefix)}\d+")
        return [path for path in self.path.glob(f"{self.prefix}*") if name.fullmatch(path.name) and path.is_dir()]


def check_files(checkpoint: Path, wrong: list[str]) -> None:
    """Raise ArtifactError if a checkpoint has `wrong` files."""
    if wrong:
        raise ArtifactError(f"checkpoint {checkpoint} is damaged: {'; '.join(wrong)}")
