"""The artifacts of earlier generations, read from storage."""

from pathlib import Path
from uuid import uuid4

from tasks.manifest import write_manifest
from tasks.promote.ledger import Generation, GenerationArtifact
from tasks.stored import send
from tests.s3 import S3
from workflows.generations import corpora_of

FACTS = {"documents": 1, "held_out_documents": 0, "bytes": 9, "held_out_bytes": 0}
FACTS |= {"duplicates": 0, "empty": 0, "invalid_utf8": 0}


def generation(folder: Path, storage: str, number: int) -> Generation:
    folder.mkdir()
    (folder / "train-00000.parquet").write_text(f"{number}")
    digest = write_manifest(folder, "corpus", FACTS).digest
    corpus = GenerationArtifact("corpus", digest, send(str(folder), digest, storage))
    return Generation("model", number, number, "promoted", {"corpus": corpus})


def test_corpora_are_read_with_flyte_s_access_to_storage(s3: S3, tmp_path: Path) -> None:
    with s3.flyte(tmp_path):
        storage = f"{s3.address}/{uuid4().hex}"
        generations = [generation(tmp_path / str(number), storage, number) for number in range(1, 20)]
        corpora = corpora_of(generations)
    assert [corpus.digest for corpus in corpora] == [each.part("corpus").digest for each in generations]
