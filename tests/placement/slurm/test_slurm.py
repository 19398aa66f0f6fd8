import os
import subprocess

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]


def test_shell(slurm):
    print(slurm)
    script = os.environ.get("WORLD_SCRIPT", "/tmp/wt5/.try.sh")
    subprocess.run(["bash", script], check=False)
