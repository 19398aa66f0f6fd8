"""The base images of this project's images: those that BATON_BASE_3_11 and BATON_BASE_3_12 name, or images created here
from Debian with its own Python 3.11 and with the Python 3.12 of this machine."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.images.docker import Docker

# pip may install into this Python, which nothing else uses, and trusts this machine's certificates
CUSTOMIZE = (
    'rm "$1"/usr/lib/python3*/EXTERNALLY-MANAGED',
    'ln -s python3 "$1/usr/bin/python"',
    'cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/ca-certificates.crt"',
)
OTHER_PYTHON = """
ldconfig
ln -sf python3.12 /usr/local/bin/python
python -m ensurepip
ln -sf pip3.12 /usr/local/bin/pip
"""


def base(docker: Docker, python: str) -> str:
    """Return the name of the base image."""
    if name := os.environ.get(f"BATON_BASE_{python.replace('.', '_')}"):
        return name
    name = f"baton-base:{python}"
    if docker.run("image", "inspect", name, check=False).returncode:
        MAKE[python](docker, name)
    return name


def _debian(docker: Docker, name: str) -> None:
    words = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates,python3,python3-pip"]
    words += [*(f"--customize-hook={each}" for each in CUSTOMIZE), "bookworm", "-"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as made:
        changes = ["--change", "ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt", "--change", "ENV LANG=C.UTF-8"]
        words = ["docker", "import", *changes, "-", name]
        subprocess.run(words, env=docker.environment, stdin=made.stdout, stdout=subprocess.DEVNULL, check=True)
    assert made.returncode == 0, words


def python_3_12() -> Path | None:
    """Return the folder of this machine's Python 3.12, which is on PATH or installed by pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for program in (shutil.which("python3.12") or "false", *map(str, pyenv.glob("versions/3.12*/bin/python3.12"))):
        asked = [program, "-c", "import ensurepip, sys; print(sys.base_prefix)"]
        ended = subprocess.run(asked, capture_output=True, text=True, check=False)
        if ended.returncode == 0:  # a shim of pyenv may fail
            return Path(ended.stdout.strip())
    return None


def _other_python(docker: Docker, name: str) -> None:
    """Add this machine's Python to Debian's base, which has the libraries that a Python links to."""
    base(docker, "3.11")
    found = python_3_12()
    assert found, "there is no Python 3.12 on PATH or under pyenv; or name an image in BATON_BASE_3_12"
    parts = [
        "bin/python3.12",
        "include/python3.12",
        "lib/python3.12",
        *(f"lib/{each.name}" for each in found.glob("lib/libpython3*")),
    ]
    left_out = [f"--exclude=lib/python3.12/{each}" for each in ("site-packages/*", "test", "config-*")]
    # an image that is created from a container without a network has none either
    docker("create", "--network", "host", "--name", "python", base(docker, "3.11"), "sh", "-euc", OTHER_PYTHON)
    with subprocess.Popen(["tar", "-c", "-C", str(found), *left_out, *parts], stdout=subprocess.PIPE) as packed:
        words = ["docker", "cp", "-", "python:/usr/local"]
        subprocess.run(words, env=docker.environment, stdin=packed.stdout, check=True)
    assert packed.returncode == 0
    docker("start", "--attach", "python")
    docker("commit", "python", name)
    docker("rm", "python")


MAKE = {"3.11": _debian, "3.12": _other_python}
