"""The files that pods with a shared corpus leave in storage, and the partitions on which each pod worked."""

import json
import re
from collections import Counter
from typing import Any

from tests.cluster.chain import baton, digests, folder_of, manifests
from tests.cluster.propeller import Cluster, Done, Watch
from tests.cluster.storage import Storage

KINDS = {"read_partitions": "scan", "encode_partitions": "tokens"}  # what these pods leave in storage
FETCHED = re.compile(r"GET /.*/partitions/(\w+\.\w+)/(?:held_out\.npy|ids)")  # a file that each has


def succeed(cluster: Cluster, execution: Any, watch: Watch | None = None) -> Done:
    done = cluster.execute(execution, watch)
    assert done.failed is None, done.why()
    return done


def partitions(storage: Storage, kind: str) -> dict[str, int]:
    """The keys of the complete partitions of a kind in storage, and how many documents each took."""
    folder = f"{baton(storage)}/partitions/"
    found = [uri for uri in storage.list(folder) if uri.endswith(f".{kind}/manifest.json")]
    return {uri.removeprefix(folder).split("/")[0]: _documents(storage, uri) for uri in found}


def _documents(storage: Storage, manifest: str) -> int:
    facts = json.loads(storage.get(manifest) or b"")["facts"]
    of_splits = [size["documents"] for size in facts.get("splits", {}).values()]
    left_out = [facts.get("counts", {}).get(reason, 0) for reason in ("duplicates", "empty", "invalid_utf8")]
    return sum([facts.get("documents", 0), *of_splits, *left_out])


class Ran:
    """The content of the storage after a run, and the partitions that its pods processed and fetched."""

    def __init__(self, storage: Storage, done: Done) -> None:
        self.done = done
        self.made = digests(storage, ["corpus", "tokenized_corpus"])
        self.partitions = {task: partitions(storage, kind) for task, kind in KINDS.items()}
        self.worked_on = Counter[str]()  # documents by round, of this run and those before; not of killed pods
        self.shares: list[tuple[set[str], int]] = []  # their partitions, and the documents that were worked on
        for manifest in manifests(storage):
            folder = folder_of(storage, manifest)
            speeds = json.loads(storage.get(f"{folder}/record/speeds.json") or b"[]")
            for speed in speeds:
                self.worked_on[speed["round"]] += speed["documents"]
            if manifest["kind"] == "partitions":
                keys = set(json.loads(storage.get(f"{folder}/partitions.json") or b""))
                self.shares.append((keys, sum(speed["documents"] for speed in speeds)))
        seen, storage.faults.seen = storage.faults.seen, []
        self.fetched = Counter(found[1] for line in seen if (found := FETCHED.match(line)))  # partitions, since then
