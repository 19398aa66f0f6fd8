"""The rules of a cloud of the world, in a file that the tests write and the API reads at each request."""

import json
from dataclasses import asdict, dataclass
from typing import ClassVar, Self

from tests.placement.world import root


@dataclass
class InFile:
    """Rules in a file of the world's folder, with defaults if there is no file."""

    file: ClassVar[str]

    @classmethod
    def read(cls) -> Self:
        path = root() / cls.file
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def write(self) -> None:
        new = root() / f"{self.file}.new"
        new.write_text(json.dumps(asdict(self)))
        new.replace(root() / self.file)
