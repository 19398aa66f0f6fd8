"""A folder of checkpoints, of which a training continues from the newest that is whole.

    FOLDER/<prefix><step>/           complete once its manifest is written, last
    FOLDER/damaged-<prefix><step>/   its files are not what was written: kept for a person, never read again

Checkpoints hold pickles: one is read only after its files' digests match its manifest.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from infra.durable import rename
from tasks.manifest import MANIFEST, ArtifactError, read_manifest, remove, wrong_files

KIND = "training_state"
DAMAGED = "damaged-"


@dataclass(frozen=True)
class CheckpointFolder:
    path: Path
    prefix: str  # of a checkpoint's name; its step follows

    def step(self, checkpoint: Path) -> int:
        return int(checkpoint.name.removeprefix(self.prefix))

    def complete(self) -> list[Path]:
        """The checkpoints that were written to the end, oldest first."""
        return sorted((path for path in self._all() if (path / MANIFEST).exists()), key=self.step)

    def newest(self) -> Path | None:
        """The newest complete checkpoint whose files are what was written; None when there is no checkpoint.
        What killed saves have left is removed, and damaged checkpoints are set aside. Raises ArtifactError
        when every checkpoint is damaged."""
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
        """Rename a damaged checkpoint, and say so in the log."""
        aside = checkpoint.with_name(DAMAGED + checkpoint.name)
        shutil.rmtree(aside, ignore_errors=True)
        rename(checkpoint, aside)
        print(f"{error}. It is kept as {aside}; trying the checkpoint before it", flush=True)

    def check_not_all_damaged(self) -> None:
        """Where no checkpoint is left: raises ArtifactError if there were some, since a run never starts anew by
        itself where there was something to continue."""
        if any(self.path.glob(f"{DAMAGED}*")):
            raise ArtifactError(
                f"{self.path}: every checkpoint is damaged. Bring one back under its old name, or delete the "
                f"folder: then the run begins at step 1"
            )

    def remove_incomplete(self) -> None:
        """What killed saves have left. Only where nobody is writing: a writer ends with its run."""
        for path in self._all():
            if not (path / MANIFEST).exists():
                remove(path)

    def remove_all(self) -> None:
        """The folder itself too."""
        remove(self.path)

    def _all(self) -> list[Path]:
        name = re.compile(rf"{re.escape(self.prefix)}\d+")
        return [path for path in self.path.glob(f"{self.prefix}*") if name.fullmatch(path.name) and path.is_dir()]


def check_files(checkpoint: Path, wrong: list[str]) -> None:
    """Raises ArtifactError when a checkpoint has `wrong` files."""
    if wrong:
        raise ArtifactError(f"checkpoint {checkpoint} is damaged: {'; '.join(wrong)}")
