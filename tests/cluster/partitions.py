"""The files that pods with a shared corpus leave in storage, and the partitions that each pod processed."""

import json
import re
from collections import Counter
from typing import Any

from tests.cluster.chain import baton, digests, folder_of, manifests
from tests.cluster.propeller import Cluster, Done, Watch
from tests.cluster.storage import Storage

KINDS = {"read_partitions": "scan", "encode_partitions": "tokens"}  # the kind of partition that each task stores
FETCHED = re.compile(r"GET /.*/partitions/(\w+\.\w+)/(?:held_out\.npy|ids)")  # a file that every partition has


def succeed(cluster: Cluster, execution: Any, watch: Watch | None = None) -> Done:
    done = cluster.execute(execution, watch)
    assert done.failed is None, done.why()
    return done


def partitions(storage: Storage, kind: str) -> dict[str, int]:
    """Return the number of documents for each complete partition of a kind in storage, by key."""
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
        self.worked_on = Counter[str]()  # documents per round in all runs, without those of killed pods
        self.shares: list[tuple[set[str], int]] = []  # each share's partitions and number of processed documents
        for manifest in manifests(storage):
            folder = folder_of(storage, manifest)
            speeds = json.loads(storage.get(f"{folder}/record/speeds.json") or b"[]")
            for speed in speeds:
                self.worked_on[speed["round"]] += speed["documents"]
            if manifest["kind"] == "partitions":
                keys = set(json.loads(storage.get(f"{folder}/partitions.json") or b""))
                self.shares.append((keys, sum(speed["documents"] for speed in speeds)))
        seen, storage.faults.seen = storage.faults.seen, []
        self.fetched = Counter(found[1] for line in seen if (found := FETCHED.match(line)))  # fetches in this run
