"""The machines on which a stage may run, and their price limits: the recipe's fields, and their translation for
SkyPilot.

A placement does not affect the result, so it is not part of any cache key or digest.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from baton.infra.paths import baton_home

TASK_TYPE = "skypilot"  # Flyte's type of a placed task, which the connector service runs
MACHINE_FAULT = 75  # the job's exit code (EX_TEMPFAIL) if a restart may help: SkyPilot recovers the job
NO_IMAGE = "baton.invalid/no-image"  # for a placed task without an image, which Flyte requires for a container
UNUSED = f"{NO_IMAGE}:unused"  # for a family without a pod in a run: flytekit asks for the images of all tasks

Accelerator = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z][\w.\-]*(:(0\.[0-9]{1,3}|[1-9][0-9]{0,3}(\.[0-9]{1,3})?))?$")
]
Infra = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]+(/[^/\s]+)*$")]
CloudOrRegion = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]+(/[^/\s]+)?$")]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
HAVE_NO_CATALOG = ("slurm", "kubernetes", "k8s", "ssh")  # their regions are the user's own clusters
BARE = ("slurm",)  # runs jobs without containers, unless an image is set
SPOT = {"spot": (True,), "on_demand": (False,), "spot_first": (True, False)}


def is_rented(place: str) -> bool:
    """Return whether a place is a cloud's, whose machines share no folder with this one, rather than a cluster of the
    user's own."""
    return place.partition("/")[0].lower() not in HAVE_NO_CATALOG


class Placement(BaseModel):
    """The machines on which a stage may run. Omitted fields do not restrict them: SkyPilot uses the cheapest with
    capacity."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    accelerators: list[Accelerator] = Field([], description="Acceptable kinds, for each node: [H100:8, A100-80GB:8]")
    infra: list[Infra] = Field(
        [], description="Where it may run: [aws, gcp/us-central1, slurm/alpha/cpu, k8s/my-cluster]; default: anywhere"
    )
    exclude: list[CloudOrRegion] = Field([], description="Where it may not run: [azure, aws/us-east-1]")
    choose: Literal["cheapest", "in_order"] = Field(
        "cheapest", description="Try the cheapest acceptable place first, or places in the listed order"
    )
    spot: Literal["spot", "on_demand", "spot_first"] = Field("on_demand", description="Kind of machine")
    nodes: int = Field(1, ge=1, le=4096, description="Machines; as many as the stage's layout has nodes")
    cpus: float | None = Field(None, gt=0, le=10_000, description="Minimum CPUs of each node")
    memory_gb: float | None = Field(None, gt=0, le=1e6, description="Minimum memory of each node, GB")
    disk_gb: int | None = Field(None, ge=1, le=1_000_000, description="Disk of each node, GB")
    max_price_per_hour: float | None = Field(None, gt=0, le=1e9, description="Limit for all nodes together, US dollars")
    max_price_per_run: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="Limit for the stage, US dollars: a running connector stops the stage at this cost",
    )
    time_limit_h: float | None = Field(None, gt=0, le=87_600, description="Hours after which the stage is stopped")
    restarts: int = Field(
        3, ge=0, le=1000, description="Restarts after a machine fault; those after a preemption are not counted"
    )
    image: str | None = Field(
        None,
        min_length=1,
        description="Container image; default: the stage's image, from BATON_IMAGE_REGISTRY or Flyte's configuration",
    )
    setup: str | None = Field(
        None, description="Shell lines before the command, such as `. /shared/baton/.venv/bin/activate`; no secrets"
    )
    secrets: list[VariableName] = Field(
        [],
        max_length=100,
        description="Environment variables passed to the job as SkyPilot secrets: [WANDB_API_KEY]; their values come "
        "from the process that starts the job, on this machine or in a cluster's connector",
    )
    storage: str | None = Field(
        None,
        min_length=1,
        description="Storage of the run's files: a bucket or a folder in one, as s3://my-bucket/baton or gs://…, or a "
        "folder that the machines share with this one; default: BATON_STORAGE, or Baton's home",
    )

    @model_validator(mode="after")
    def _something_is_left(self) -> "Placement":
        if self.infra and all(self._is_excluded(place) for place in self.infra):
            raise ValueError("exclude leaves nothing of infra")
        for cloud in {*self.infra, *(HAVE_NO_CATALOG if not self.infra else ())}.intersection(HAVE_NO_CATALOG):
            if self._is_split(cloud):
                raise ValueError(f"a part of {cloud} is excluded: name the parts that may be used in infra instead")
        return self

    def out_of_reach(self, storage: str, places: Iterable[str]) -> str | None:
        """Return the first of the places whose machines cannot reach the run's storage: they are a cloud's, and neither
        the placement nor BATON_STORAGE names a storage, so that it is Baton's home on this machine."""
        if self.storage or storage != str(baton_home().expanduser().absolute()):
            return None
        return next(filter(is_rented, places), None)

    def _is_excluded(self, place: str) -> bool:
        """Return whether a place is one of `exclude`, or within one."""
        return any(f"{place.lower()}/".startswith(f"{other.lower()}/") for other in self.exclude)

    def _is_split(self, place: str) -> bool:
        """Return whether a part of a place is excluded."""
        return any(other.lower().startswith(f"{place.lower()}/") for other in self.exclude)

    def _is_bare(self, place: str) -> bool:
        return not self.image and place.partition("/")[0].lower() in BARE

    def choices(self, docker: str | None = None, clouds: Sequence[str] = ()) -> list[dict[str, Any]]:
        """The acceptable kinds of machine in the recipe's order, each as SkyPilot's `resources:`. `docker`: the
        container image, if any. `clouds`: the clouds that SkyPilot has access to, for a placement with `exclude` but
        without `infra`.

        If some regions of a cloud are excluded, imports SkyPilot and reads its catalog. Raises ValueError if no place
        is left."""
        image: dict[str, bool | str] = {"image_id": f"docker:{docker.removeprefix('docker:')}"} if docker else {}
        named = self.infra or (clouds if self.exclude else ())
        places = [part for place in named for part in self._parts(place) if not self._is_excluded(part)]
        if self.exclude and not places:
            raise ValueError(f"exclude: {self.exclude}: leaves none of {', '.join(named) or 'the clouds'}")
        return [
            {"use_spot": spot}
            | ({"accelerators": chip} if chip else {})
            | ({"infra": place} if place else {})
            | ({} if self._is_bare(place) else image)
            for chip, place, spot in product(self.accelerators or [""], places or [""], SPOT[self.spot])
        ]

    def each_node(self) -> dict[str, Any]:
        """The part of SkyPilot's `resources:` that all choices share."""
        shared = {
            "cpus": self.cpus and f"{self.cpus:g}+",
            "memory": self.memory_gb and f"{self.memory_gb:g}+",
            "disk_size": self.disk_gb,
            "max_hourly_cost": self.max_price_per_hour and self.max_price_per_hour / self.nodes,
            "job_recovery": {"max_restarts_on_errors": 0, "recover_on_exit_codes": [MACHINE_FAULT]},
        }
        return {name: value for name, value in shared.items() if value is not None}

    def _parts(self, place: str) -> list[str]:
        """A place, split into its regions if some of them are excluded."""
        return [f"{place}/{region}" for region in _regions(place)] if self._is_split(place) else [place]


def _regions(cloud: str) -> list[str]:
    from sky.catalog.common import read_catalog

    return sorted(set(read_catalog(f"{cloud.lower()}/vms.csv")["Region"].dropna()))
