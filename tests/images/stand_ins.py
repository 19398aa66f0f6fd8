"""Replacements for public images that cannot be pulled here, built under their names from Debian's packages and this
environment."""

import subprocess
import sys
from pathlib import Path

from tests.images.base import base
from tests.images.docker import Docker

# folders of this machine that two of the images need: the environment, and its base Python unless that is Debian's
PLACES = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()} - {Path("/usr")}
ENVIRONMENT = Path(sys.prefix).resolve()

POSTGRES = """
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  printf %s "$POSTGRES_PASSWORD" > /tmp/password
  initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
  echo "CREATE DATABASE $POSTGRES_DB" | postgres --single postgres
fi
exec postgres -c listen_addresses='*'
"""
# moto's S3 with a bucket for each folder below the given one; it accepts any key
STORE = """
import sys
from pathlib import Path
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
health, folder = sys.argv[sys.argv.index("--health") + 1], Path(sys.argv[-1])
server = DomainDispatcherApplication(create_backend_app)
def answer(environ, start):
    if environ["PATH_INFO"] == health:
        start("200 OK", [])
        return []
    return server(environ, start)
import boto3
from threading import Thread
keys = dict(aws_access_key_id="any", aws_secret_access_key="any", region_name="us-east-1")
def buckets():
    store = boto3.client("s3", endpoint_url="http://127.0.0.1:7070", **keys)
    for each in folder.iterdir():
        (each / "writable").touch()
        store.create_bucket(Bucket=each.name)
Thread(target=buckets).start()
run_simple("0.0.0.0", 7070, answer, threaded=True)
"""

DOCKERFILES = {
    "servers": """
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends postgresql nginx-light curl wget libnuma1
""",
    "postgres:17": """
FROM servers
RUN install -d -o postgres -m 1777 /var/lib/postgresql/data && install -d -o postgres -m 3777 /var/run/postgresql
ENV PATH=/usr/lib/postgresql/15/bin:$PATH PGDATA=/var/lib/postgresql/data
COPY postgres /entrypoint
ENTRYPOINT ["sh", "-eu", "/entrypoint"]
""",
    "versity/versitygw:v1.8.0": """
FROM servers
COPY store /store.py
ENTRYPOINT ["{environment}/bin/python", "/store.py"]
""",
    "nginxinc/nginx-unprivileged:1.30": """
FROM servers
USER 101
CMD ["nginx", "-g", "daemon off;"]
""",
    "baton-serve": """
FROM servers
RUN mkdir -p {parents} && chmod a+x {parents}
ENV PATH={environment}/bin:$PATH
""",
}


def stand_ins(docker: Docker, folder: Path) -> None:
    """Build the images."""
    (folder / "postgres").write_text(POSTGRES)
    (folder / "store").write_text(STORE)
    docker("tag", base(docker, "3.12"), "python:3.12-slim-bookworm")
    for name, text in DOCKERFILES.items():
        # one of the folders may be in a home folder, which other users cannot enter
        parents = " ".join(sorted({str(parent) for place in PLACES for parent in place.parents if parent != Path("/")}))
        made = text.format(base=base(docker, "3.11"), environment=ENVIRONMENT, parents=parents)
        words = ["docker", "build", "--tag", name, "--file", "-", str(folder)]
        subprocess.run(words, env=docker.environment, input=made, text=True, check=True)
