"""The recipe of docs/cloud.md, as printed there."""

import re
from pathlib import Path

import pytest
import yaml

from tests.placement.cloud.jobs import nothing_is_left
from tests.placement.cloud.world import Cloud
from tests.placement.runs import SHORT, done, start
from tests.placement.world import BIN, REPOSITORY

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(900)]


def test_the_recipe_of_the_docs_runs(aws: Cloud, tmp_path: Path) -> None:
    """The recipe's placement, with a small model; `setup` replaces the image, since this machine has no registry."""
    text = (REPOSITORY / "docs/cloud.md").read_text().partition("## From a laptop to the first rented GPU")[2]
    addition = yaml.safe_load(re.findall(r"```yaml\n(pretrain:.*?)```", text, re.S)[0])
    placement = addition["pretrain"]["placement"]
    assert {"accelerators", "spot", "max_price_per_hour", "max_price_per_run", "storage"} <= set(placement)
    assert placement["storage"].startswith("s3://my-bucket/")
    run = done(start(tmp_path, SHORT, {"placement": placement | {"setup": f". {BIN}/activate"}}))
    placed = run.record().placed
    assert placed["cloud"] == "AWS"
    assert placed["price_per_hour"] <= placement["max_price_per_hour"]
    nothing_is_left(aws)
