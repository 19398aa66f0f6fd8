"""A program for a sandbox, its limits, and its result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType

from baton.infra.errors import UserError

MIB = 1 << 20


class NoSandbox(UserError):
    """This machine has no usable sandbox."""


@dataclass(frozen=True)
class Limits:
    """Limits of one program and all its children together, except where stated. A checker has the same limits, counted
    separately."""

    wall_s: float = 10.0
    cpu_s: int = 10  # per process
    memory_mb: int = 512  # MiB, beside the files that it writes
    processes: int = 1  # including itself; threads count too
    output_kb: int = 64  # KiB of standard output, and as much of standard error
    disk_mb: int = 16  # MiB of files
    files: int = 1000


@dataclass(frozen=True)
class Program:
    """Python source, or `argv`; run in an empty folder with `files` (by relative path).

    With a `checker` there are two processes. The program has no input and no output but errors and two pipes, its
    descriptors 3 (from the checker) and 4 (to the checker). The checker has them as `pipes` (from the program, to the
    program), gets `stdin`, and writes the result's `stdout`; it sets `gone` if the program has closed its end, and the
    exit code is then that of the program.
    """

    source: str | CodeType = ""
    argv: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""
    checker: CodeType | None = None
    modules: Mapping[str, CodeType] = field(default_factory=dict)  # modules that both may import


@dataclass(frozen=True)
class Result:
    """The end of a program. `limit` is the limit that it reached, if any: wall, cpu, output, memory, processes or
    files. The last three are inferred from the exception of a Python program, so a program that handles it has none."""

    exit_code: int  # 128 + n after signal n, as in a shell
    stdout: bytes
    stderr: bytes
    limit: str | None
    wall_s: float
