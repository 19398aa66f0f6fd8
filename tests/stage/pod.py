"""A stage in a pod of a Flyte cluster: a process in a fresh home, of which only the data in S3 persists.

python -m tests.stage.pod ENDPOINT STAGE SPEC [DATA …] prints the place of the artifact and its digest.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

from flytekit.core.base_task import IgnoreOutputs

from baton.infra.flyte.options import Options
from tests.processes import kill_tree
from tests.s3 import S3
from tests.source import ROOT


@dataclass
class Pod:
    """One attempt at a stage. The files on its disk are lost when it is deleted."""

    home: Path
    process: subprocess.Popen[str]

    def succeed(self) -> dict[str, Any]:
        out, err = self.process.communicate()
        assert self.process.returncode == 0, err[-5000:]
        made: dict[str, Any] = json.loads(out.splitlines()[-1])
        return made | {"said": err}

    def kill(self) -> None:
        """Kill every process of the pod at once, as if its node were lost."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        kill_tree(self.process.pid)
        self.process.communicate()

    def stop(self) -> str:
        """Stop the pod with the signal that Kubernetes sends first, and return its errors."""
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate()
        assert self.process.returncode == 128 + signal.SIGTERM, err[-5000:]
        return err

    @cached_property
    def job(self) -> Path:
        (job,) = (self.home / "jobs").iterdir()
        return job

    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.job / "metrics.jsonl").read_text().splitlines()]

    def starts(self) -> list[int]:
        """Return the step that each start of the engine continued from."""
        path = self.home / "starts"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def starts_made(self) -> list[str]:
        """Return the stages whose toy engines were started."""
        path = self.home / "starts"
        return path.read_text().split() if path.exists() else []


def start(server: S3, folder: Path, storage: str, *words: str, **environment: str) -> Pod:
    """Start a pod whose storage is `storage`, with a fresh home in a folder."""
    home = folder / uuid4().hex
    home.mkdir()
    own = {"BATON_HOME": str(home), "BATON_STORAGE": storage, "TOY_STARTS": str(home / "starts")}
    own |= {"FLYTE_INTERNAL_EXECUTION_ID": "e0"} | server.environment() | environment
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.stage.pod", server.endpoint, *words],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "BATON_EXECUTION"} | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return Pod(home, process)


def _count(spec: str) -> Any:
    from baton.infra.process.launch import Engine
    from baton.tasks.run import run
    from tests.stage.chain import Text
    from tests.stage.counting import CountingSpec

    return run(Engine("counting", "tests.stage.counting", version="1"), Text, CountingSpec.model_validate_json(spec))


def _gather(spec: str, *corpora: str) -> Any:
    from baton.tasks.data.artifact import Corpus
    from baton.tasks.data.spec import GatherSpec
    from baton.tasks.data.task import gather

    *earlier, newest = map(Corpus.from_place, corpora)
    words = {"spec": GatherSpec.model_validate_json(spec), "corpora": earlier, "newest": newest}
    return gather.task_function(**words, options=Options())  # type: ignore[attr-defined]


def _encode(spec: str, corpus: str, tokenizer: str) -> Any:
    from baton.tasks.data.artifact import Corpus, Tokenizer
    from baton.tasks.data.spec import ShareSpec
    from baton.tasks.data.task import encode_partitions

    words = {"spec": ShareSpec.model_validate_json(spec), "corpus": Corpus.from_place(corpus)}
    words |= {"tokenizer": Tokenizer.from_place(tokenizer)}
    return encode_partitions.task_function(**words, options=Options())  # type: ignore[attr-defined]


def _tokenize(spec: str, corpus: str, tokenizer: str) -> Any:
    from baton.tasks.data.artifact import Corpus, Tokenizer
    from baton.tasks.data.spec import ShardsSpec
    from baton.tasks.data.task import tokenize

    words = {"spec": ShardsSpec.model_validate_json(spec), "corpus": Corpus.from_place(corpus)}
    words |= {"tokenizer": Tokenizer.from_place(tokenizer)}
    return tokenize.task_function(**words, options=Options())  # type: ignore[attr-defined]


def _report(spec: str, *parts: str) -> Any:
    from baton.tasks.artifacts import Artifact
    from baton.tasks.report.spec import ReportSpec
    from baton.tasks.report.task import report

    named = {f"part_{number}": Artifact.from_place(place) for number, place in enumerate(parts)}
    words = {"spec": ReportSpec.model_validate_json(spec), "parts": named}
    return report.task_function(**words, models=[], reports=[], options=Options())  # type: ignore[attr-defined]


def _make(spec: str) -> Any:
    from baton.infra.process.launch import Engine
    from baton.tasks.run import run
    from tests.stage.chain import Text
    from tests.stage.engines import MakeSpec

    return run(Engine("make", "tests.stage.engines", version="1"), Text, MakeSpec.model_validate_json(spec))


def _pretrain(spec: str, *data: str) -> Any:
    from baton.tasks.data.artifact import TokenizedCorpus
    from baton.tasks.pretrain.spec import PretrainSpec
    from baton.tasks.pretrain.task import pretrain

    first, *more = map(TokenizedCorpus.from_place, data)
    words = {"spec": PretrainSpec.model_validate_json(spec), "data": first, "more": more, "start": [], "resume": []}
    return pretrain.task_function(**words, options=Options())  # type: ignore[attr-defined]


def _tune(method: str, spec: str, model: str, rows: str) -> Any:
    from baton.tasks.models.artifact import HFModel
    from baton.tasks.posttrain.methods import METHODS
    from baton.tasks.posttrain.task import TASKS
    from baton.tasks.rows.artifact import Rows

    words = {"model": HFModel.from_place(model), "rows": Rows.from_place(rows)}
    return TASKS[method].task_function(spec=METHODS[method].model_validate_json(spec), **words, options=Options())


STAGES: dict[str, Callable[..., Any]] = {
    "counting": _count,
    "gather": _gather,
    "encode": _encode,
    "tokenize": _tokenize,
    "report": _report,
    "pretrain": _pretrain,
    "tune": _tune,
    "make": _make,
}


if __name__ == "__main__":
    # increases the memory of the stage's own process
    ballast = b"-" * (int(os.environ.get("POD_BALLAST_MIB", "0")) << 20)
    try:
        with S3(sys.argv[1]).flyte(Path(os.environ["BATON_HOME"]) / "flyte"):
            made = STAGES[sys.argv[2]](*sys.argv[3:])
    except IgnoreOutputs:  # raised on all nodes but the first
        sys.exit()
    print(json.dumps({"place": made.place, "digest": made.digest}))
