"""Flyte's cache of the outputs of tasks, with its rules for keys. An entry stays valid forever, even if its files are
gone.

The dataset of an entry consists of the task's project, domain and name, its cache version and its interface, including
the descriptions of types. Its tag is computed from the inputs without the ignored ones; a literal that has a hash is
represented by that hash.
"""

from hashlib import sha256

from flyteidl.core.interface_pb2 import VariableMap
from flyteidl.core.literals_pb2 import Literal, LiteralMap
from flyteidl.core.tasks_pb2 import TaskTemplate

Key = tuple[str, ...]


class Catalog:
    def __init__(self) -> None:
        self._entries: dict[Key, LiteralMap] = {}

    def get(self, task: TaskTemplate, inputs: LiteralMap) -> LiteralMap | None:
        return self._entries.get(key(task, inputs))

    def put(self, task: TaskTemplate, inputs: LiteralMap, outputs: LiteralMap) -> None:
        self._entries[key(task, inputs)] = outputs

    def forget(self, *functions: str) -> None:
        """Delete the entries of some tasks."""
        kept = {key: found for key, found in self._entries.items() if key[2].rpartition(".")[2] not in functions}
        self._entries = kept


def key(task: TaskTemplate, inputs: LiteralMap) -> Key:
    dataset = (task.id.project, task.id.domain, task.id.name, task.metadata.discovery_version)
    ignored = task.metadata.cache_ignore_input_vars
    counted = {name: _by_hash(each) for name, each in inputs.literals.items() if name not in ignored}
    tag = _digest(LiteralMap(literals=counted))
    return (*dataset, _digest(task.interface.inputs), _digest(task.interface.outputs), tag)


def _by_hash(literal: Literal) -> Literal:
    if literal.hash:
        return Literal(hash=literal.hash)
    kind, found = literal.WhichOneof("value"), Literal()
    if kind == "collection":
        found.collection.literals.extend(_by_hash(each) for each in literal.collection.literals)
    elif kind == "map":
        for name, each in literal.map.literals.items():
            found.map.literals[name].CopyFrom(_by_hash(each))
    else:
        return literal
    return found


def _digest(message: LiteralMap | VariableMap) -> str:
    return sha256(message.SerializeToString(deterministic=True)).hexdigest()
