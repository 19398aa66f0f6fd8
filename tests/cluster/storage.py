"""An S3 server in this process (moto), which is all that the pods of a test share. It fails on demand, but only for
pods."""

import itertools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.moto_server.threaded_moto_server import make_server  # a Werkzeug server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app

from tests.s3 import KEY, S3, Faults, disturbed

_buckets = itertools.count()


class Storage:
    """One bucket of the server, as this process sees it. Pods use another address."""

    def __init__(self, bucket: str, here: str, for_pods: str, faults: Faults) -> None:
        self.bucket, self.for_pods, self.faults = bucket, for_pods, faults
        self.client = boto3.client(
            "s3", endpoint_url=here, region_name="us-east-1", aws_access_key_id=KEY, aws_secret_access_key=KEY
        )

    @property
    def root(self) -> str:
        return f"s3://{self.bucket}"

    def environment(self) -> dict[str, str]:
        """Return the environment variables that the operator of a cluster gives to every pod."""
        return {
            "FLYTE_AWS_ENDPOINT": self.for_pods,
            "FLYTE_AWS_ACCESS_KEY_ID": KEY,
            "FLYTE_AWS_SECRET_ACCESS_KEY": KEY,
        }

    def put(self, uri: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=self._key(uri), Body=content)

    def get(self, uri: str) -> bytes | None:
        """Return the content of an object, or None if there is no such object."""
        try:
            return bytes(self.client.get_object(Bucket=self.bucket, Key=self._key(uri))["Body"].read())
        except self.client.exceptions.NoSuchKey:
            return None

    def list(self, prefix: str = "") -> list[str]:
        """Return the addresses of the objects below an address."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self._key(prefix))
        return [f"{self.root}/{entry['Key']}" for page in pages for entry in page.get("Contents", ())]

    def remove(self, prefix: str) -> int:
        """Delete every object below an address; returns the number of objects."""
        found = self.list(prefix)
        for uri in found:
            self.client.delete_object(Bucket=self.bucket, Key=self._key(uri))
        return len(found)

    def signed(self, uri: str) -> str:
        """Return an address that a client without credentials may write to."""
        words = {"Bucket": self.bucket, "Key": self._key(uri)}
        return str(self.client.generate_presigned_url("put_object", Params=words, ExpiresIn=3600))

    def _key(self, uri: str) -> str:
        return uri.removeprefix(self.root).lstrip("/")


@contextmanager
def s3() -> Iterator[Storage]:
    """A server with an empty bucket."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it logs every request
    faults = Faults()
    with (
        served(DomainDispatcherApplication(create_backend_app)) as here,
        disturbed(S3(here), faults) as for_pods,
    ):
        storage = Storage(f"flyte-{next(_buckets)}", here, for_pods.endpoint, faults)
        storage.client.create_bucket(Bucket=storage.bucket)
        yield storage


@contextmanager
def served(app: Any) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
