"""A program in a terminal of its own, which a test types into."""

import codecs
import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.source import ROOT

CTRL_C, CTRL_D = "\x03", "\x04"


@dataclass
class Typed:
    process: subprocess.Popen[bytes]
    terminal: int
    shown: str = ""
    read: int = 0  # characters that `sees` has passed
    decoder: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-8"))  # over reads

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def line(self, text: str) -> None:
        """Type a line once the program waits for one."""
        self.sees("> ")
        self.type(f"{text}\n")

    def sees(self, text: str, timeout_s: float = 60) -> str:
        """Wait until the terminal shows a text, and return what it showed before since the last one."""
        deadline = time.monotonic() + timeout_s
        while (at := self.shown.find(text, self.read)) < 0:
            assert time.monotonic() < deadline, self.shown
            self._receive()
        before, self.read = self.shown[self.read : at], at + len(text)
        return before

    def ends(self, timeout_s: float = 60) -> int:
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            self._receive()
        return self.process.returncode

    def _receive(self) -> None:
        if select.select([self.terminal], [], [], 0.1)[0]:
            try:
                self.shown += self.decoder.decode(os.read(self.terminal, 65536)).replace("\r\n", "\n")
            except OSError:  # the program has closed its side
                time.sleep(0.05)


@contextmanager
def typed(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Typed]:
    """Start a program whose input and output are a terminal of 100 columns."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40", **environment}
    command = ["setsid", "--ctty", *command]  # Ctrl-C then reaches the program
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, cwd=ROOT, env=environment)
    os.close(its)
    try:
        yield Typed(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
