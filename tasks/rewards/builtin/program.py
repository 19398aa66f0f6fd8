"""Reward completions with a user's Python program in the sandbox, for checks that execute the completion.

The program reads one JSON object on standard input, with "prompt", "completion" (text) and the row's columns, and
prints the reward, a number, as its last line. If the program runs a completion in its own process, the completion can
make it print anything; `code_tests` compares outside of that process.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr

from baton.infra.errors import UserError
from baton.infra.sandbox.program import Program, Result
from baton.infra.text import shown
from baton.tasks.core.spec import PathText, Problem
from baton.tasks.rewards.builtin.builtin import ANSWERS
from baton.tasks.rewards.builtin.sandboxed import Sandboxed
from baton.tasks.rewards.call import text_of
from baton.tasks.user_code.load_function import Unusable


class Verifier(Sandboxed):
    """The number that the program prints; 0 if it fails or meets a limit."""

    file: PathText = Field(description="a Python file")
    source: str | None = Field(None, repr=False, description="text of the file; filled in by Baton")

    _works: bool = PrivateAttr(False)  # whether the program has printed a number

    def pinned(self) -> Self:
        if self.source is not None:
            return self
        if problems := self.problems():
            raise UserError("\n".join(map(str, problems)))
        return self.model_copy(update={"source": Path(self.file).expanduser().read_text()})

    def problems(self) -> list[Problem]:
        try:
            compile(self.source or Path(self.file).expanduser().read_bytes(), self.file, "exec")
        except (OSError, SyntaxError, ValueError) as error:
            return [Problem("file", self.file, f"a Python file: {error}")]
        return []

    def __call__(
        self,
        *,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Callable[[str, float], None],
        **columns: Any,
    ) -> list[float | None]:
        given = {name: values for name, values in columns.items() if isinstance(values, list)}
        rows = [
            {name: values[row] for name, values in given.items()}
            | {"prompt": text_of(prompt), "completion": text_of(completion)}
            for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]
        results = self._results(rows, log_metric)
        rewards = [_number(result) for result in results]
        self._works |= any(reward is not None for reward in rewards)
        if rows and not self._works:
            self._try(rows[0], results[0])
        log_metric("printed_no_number", rewards.count(None) / max(1, len(rewards)))
        return [reward or 0.0 for reward in rewards]

    def _try(self, row: dict[str, Any], result: Result) -> None:
        """Distinguish a faulty program from one that fails for these completions, by trying it on the row's answer and
        on empty text. Raises Unusable."""
        answer = next((text_of(row[name]) for name in ANSWERS if row.get(name) is not None), "")
        self._works = any(
            _number(each) is not None
            for each in self._results([row | {"completion": text} for text in (answer, "")], lambda *_: None)
        )
        output = result.stderr.decode(errors="replace").strip()[-500:] or f"exit code {result.exit_code}"
        what = f"{self.file} printed no number as its last line for any completion; first: {shown(output)}"
        if not self._works:
            raise Unusable(what)
        self._report_once(f"program: {what}")

    def _results(self, rows: Sequence[dict[str, Any]], log_metric: Callable[[str, float], None]) -> list[Result]:
        return self._run([Program(self.source or "", stdin=json.dumps(row).encode()) for row in rows], log_metric)


def _number(result: Result) -> float | None:
    last = result.stdout.strip().rpartition(b"\n")[2]
    try:
        number = float(last)
    except ValueError:
        return None
    return number if math.isfinite(number) and not result.exit_code and result.limit is None else None
