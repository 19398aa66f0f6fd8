"""The artifact of a publication."""

from baton.infra.tracking.relations import PUBLISHES, Relation
from baton.tasks.artifacts import Artifact


class PublishedModel(Artifact):
    """The final Hugging Face directory with its model card, its registry version, and its commit on the hub."""

    kind = "published_model"
    order = 150
    family = "model"
    relation = Relation(PUBLISHES, of="model")
    page = "baton.tasks.publish.page:published_model"
    label: str
    registry_name: str
    registry_version: str
    why: str = ""  # it was chosen; not a fact that another stage can read
    hub: str = ""  # the repository, if it was pushed
    hub_commit: str = ""

    def detail(self) -> str:
        return f"version {self.registry_version}"
