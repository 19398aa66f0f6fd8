"""Flyte's propeller for tests, which runs the nodes of an execution as pods, with the protocol of the real one.

The graph comes from the admin, each command line is the registered one, and inputs.pb, outputs.pb, error.pb and
futures.pb are in the storage. See FINDINGS, "Flyte's cluster side", for observations of the real propeller.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flyteidl.core.dynamic_job_pb2 import DynamicJobSpec
from flyteidl.core.literals_pb2 import LiteralMap

from baton.infra.placement.config import TASK_TYPE
from tests.cluster.admin import Admin, Id, id_of
from tests.cluster.attempt import BUILT_IN, Asked, Attempt, asked, clamped
from tests.cluster.bind import START, bind, upstream
from tests.cluster.catalog import Catalog
from tests.cluster.connector import Connector
from tests.cluster.failure import Failed, Retries
from tests.cluster.network import Network
from tests.cluster.pod import Pod
from tests.cluster.storage import Storage

PODS = 2  # maximum number at a time

Watch = Callable[[Pod], None]


@dataclass(frozen=True)
class Ran:
    """An attempt at a task, or its outputs from the catalog."""

    node: str  # n0, n0-0-dn3
    task: str  # name of the task's function
    attempt: int
    cached: bool
    failed: Failed | None
    seconds: float
    asked: Asked
    log: Path | None

    @property
    def said(self) -> str:
        """Return the output of the pod."""
        return self.log.read_text(errors="replace") if self.log else ""


@dataclass
class Done:
    """The outcome of an execution."""

    name: str
    outputs: LiteralMap | None = None
    failed: Failed | None = None
    ran: list[Ran] = field(default_factory=list)  # ordered by end

    def of(self, task: str) -> list[Ran]:
        return [each for each in self.ran if each.task == task]

    def made(self) -> list[str]:
        """Return the tasks that ran, as opposed to those from the catalog."""
        return [each.task for each in self.ran if not each.cached]

    def why(self) -> str:
        """Return the reason of an unexpected failure."""
        logs = [f"--- {each.task}, attempt {each.attempt}\n{each.said[-3000:]}" for each in self.ran if each.failed]
        return f"{self.failed}\n" + "\n".join(logs)


@dataclass
class Cluster:
    """The state that executions share, and the settings of the operator."""

    storage: Storage
    admin: Admin
    address: str  # address of the admin
    folder: Path  # holds the logs of pods, and their disks while they run
    environment: Mapping[str, str]  # variables of every pod: the operator's default-env-vars
    task_resources: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: BUILT_IN)
    secrets: Mapping[str, str] = field(default_factory=dict)  # indexed by key, regardless of the group
    pods: Callable[[str], Callable[..., Pod]] = lambda image: Pod  # the class that starts pods of an image
    connector: str | None = None  # address of the connector
    connector_deadline_s: float = 10.0  # deadline of each call; this is Flyte's default
    catalog: Catalog = field(default_factory=Catalog)
    network: Network = field(default_factory=Network)

    def execute(self, execution: Any, watch: Watch | None = None) -> Done:
        """Run an execution that was created in the admin. `watch` is called with each pod, in a separate thread."""
        done: Done = _Run(self, execution, watch).run()
        self.admin.results[execution.name] = done
        return done


@dataclass(frozen=True)
class _Graph:
    """The nodes of a workflow, and the place of the workflow in an execution."""

    nodes: Iterable[Any]
    outputs: Iterable[Any]
    tasks: Mapping[Id, Any]
    subworkflows: Mapping[Id, Any]
    unique: str  # prefix of the ids of the nodes
    data: str  # parent folder of the nodes' folders


class _Run:
    def __init__(self, cluster: Cluster, execution: Any, watch: Watch | None) -> None:
        self.cluster, self.execution, self.watch = cluster, execution, watch
        self.done = Done(execution.name)
        self.free, self.stopped = threading.Semaphore(PODS), threading.Event()
        self.pods: set[Pod] = set()
        self.broken: list[Exception] = []  # exceptions from `watch`
        self.lock = threading.Lock()

    def run(self) -> Done:
        admin, execution = self.cluster.admin, self.execution
        workflow = admin.workflow(admin.launch_plan(execution.spec.launch_plan).workflow_id)
        folder = f"{execution.project}-{execution.domain}-{execution.name}"
        graph = _Graph(
            workflow.template.nodes,
            workflow.template.outputs,
            admin.all_tasks(),
            {id_of(each.id): each for each in workflow.sub_workflows},
            unique="",
            data=f"{self.cluster.storage.root}/metadata/propeller/{folder}",
        )
        try:
            self.done.outputs = self.graph(graph, admin.inputs(execution))
        except Failed as failed:
            self.done.failed = failed
        if self.broken:
            raise self.broken[0]
        return self.done

    def graph(self, graph: _Graph, inputs: LiteralMap) -> LiteralMap:
        """Run each node as soon as its upstream nodes have finished. The first failure ends all. Raises Failed."""
        known, waiting = {START: inputs}, {node.id: node for node in graph.nodes}
        running: dict[Future[LiteralMap], str] = {}
        failed: BaseException | None = None
        with ThreadPoolExecutor(max(1, len(waiting))) as threads:
            while running or (waiting and not failed):
                ready = [each for each in waiting.values() if not failed and _before(each) <= known.keys()]
                assert ready or running, f"nodes that wait for each other or for a missing node: {[*waiting]}"
                for node in ready:
                    del waiting[node.id]
                    running[threads.submit(self.node, graph, node, bind(node.inputs, known))] = node.id
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    node_id, error = running.pop(future), future.exception()
                    if error is None:
                        known[node_id] = future.result()
                    elif failed is None:
                        failed = error
                        self.stop()
        if failed:
            raise failed
        return bind(graph.outputs, known)

    def stop(self) -> None:
        """Stop the other pods after a node has failed, as Flyte does."""
        self.stopped.set()
        with self.lock:
            left = [*self.pods]
        for pod in left:
            pod.delete()

    def node(self, graph: _Graph, node: Any, inputs: LiteralMap) -> LiteralMap:
        """Return a node's outputs, from the catalog or by attempts until one succeeds. Raises Failed."""
        unique, data = f"{graph.unique}{node.id}", f"{graph.data}/{node.id}/data"
        if graph.unique:
            data = f"{graph.data}/{node.id}"
        if node.WhichOneof("target") == "workflow_node":
            sub = graph.subworkflows[id_of(node.workflow_node.sub_workflow_ref)]
            return self.graph(_under(graph, sub, unique, data, 0), inputs)
        if node.WhichOneof("target") != "task_node":
            raise NotImplementedError(f"{node.id}: a {node.WhichOneof('target')}")
        task = graph.tasks[id_of(node.task_node.reference_id)]
        expected = clamped(asked(task, node), self.cluster.task_resources)
        discoverable = task.metadata.discoverable
        storage, catalog = self.cluster.storage, self.cluster.catalog
        attempt = Attempt(self.execution, task, expected, unique, data, 0, storage.root)
        if discoverable and not self.execution.spec.overwrite_cache and (found := catalog.get(task, inputs)):
            self.note(attempt, time.monotonic(), None, cached=True)
            return found
        storage.put(f"{data}/inputs.pb", inputs.SerializeToString())
        made = self.attempts(attempt, inputs, Retries(expected.retries))
        if isinstance(made, tuple):  # the failures of inner nodes are not retried here
            number, spec = made
            made = self.graph(_under(graph, spec, unique, data, number), LiteralMap())
            storage.put(f"{data}/{number}/outputs.pb", made.SerializeToString())
        if discoverable:
            catalog.put(task, inputs, made)
        return made

    def attempts(self, attempt: Attempt, inputs: LiteralMap, retries: Retries) -> LiteralMap | tuple[int, Any]:
        """Return the outputs, or the attempt's number and the nodes of the dynamic workflow that it left. Raises
        Failed."""
        while True:
            began = time.monotonic()
            try:
                with self.free:
                    if self.stopped.is_set():
                        raise Failed("aborted", recoverable=False)
                    began = time.monotonic()
                    found = self.attempt(attempt, inputs)
            except Failed as failed:
                self.note(attempt, began, failed)
                if self.stopped.is_set() or not retries.again(failed):
                    raise
                attempt = attempt.next()
                continue
            self.note(attempt, began, None)
            return (attempt.number, found) if isinstance(found, DynamicJobSpec) else found

    def attempt(self, attempt: Attempt, inputs: LiteralMap) -> LiteralMap | DynamicJobSpec:
        cluster = self.cluster
        if attempt.task.type == TASK_TYPE:
            assert cluster.connector, f"{attempt.node}: this cluster has no connector"
            task = attempt.filled_in()
            connector = Connector(cluster.connector, cluster.connector_deadline_s)
            found = connector.run(task, inputs, attempt.output_prefix, self.stopped)
            return attempt.result(0, cluster.storage) if found is None else found
        given = {**cluster.environment, **attempt.environment(cluster.secrets)}
        folder, command = self.folder(attempt), attempt.command()
        limits = attempt.asked.limits
        about = (attempt.pod, attempt.function, attempt.number, folder)
        pod = cluster.pods(attempt.asked.image)(*about, cluster.network, command, given, limits)
        with self.lock:
            self.pods.add(pod)
        if grace := attempt.asked.pod.get("terminationGracePeriodSeconds"):
            pod.grace_s = int(grace)
        if self.watch:
            threading.Thread(target=self.watched, args=[pod], daemon=True).start()
        try:
            code = pod.wait()
        finally:
            if not pod.lost.is_set():
                pod.kill()
            with self.lock:
                self.pods.discard(pod)
        if pod.deleted:
            raise Failed(f"{pod.name} was deleted", recoverable=True, system=True)
        if pod.out_of_memory:
            raise attempt.out_of_memory(code)
        return attempt.result(code, cluster.storage, pod.log.read_text(errors="replace"))

    def watched(self, pod: Pod) -> None:
        """Call `watch` in a thread, and store its exception for the thread that waits for the execution."""
        assert self.watch
        try:
            self.watch(pod)
        except Exception as error:
            self.broken.append(error)

    def note(self, attempt: Attempt, began: float, failed: Failed | None, cached: bool = False) -> None:
        log = self.folder(attempt) / "log.txt"
        self.done.ran.append(
            Ran(
                attempt.node,
                attempt.function,
                attempt.number,
                cached,
                failed,
                time.monotonic() - began,
                attempt.asked,
                log if log.exists() else None,
            )
        )

    def folder(self, attempt: Attempt) -> Path:
        return self.cluster.folder / attempt.pod


def _before(node: Any) -> set[str]:
    return {*node.upstream_node_ids, *upstream(node.inputs)} - {""}


def _under(graph: _Graph, spec: Any, unique: str, data: str, number: int) -> _Graph:
    """Return the graph of a subworkflow, or of the nodes that an attempt at a dynamic workflow has left."""
    tasks = {**graph.tasks, **{id_of(each.id): each for each in getattr(spec, "tasks", ())}}
    inner = {id_of(each.id): each for each in getattr(spec, "subworkflows", ())}
    return _Graph(
        spec.nodes, spec.outputs, tasks, {**graph.subworkflows, **inner}, f"{unique}-{number}-", f"{data}/{number}"
    )
