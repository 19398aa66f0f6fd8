"""An S3 server in this process (moto): all that the pods of a test share. It fails on demand, for pods alone."""

import itertools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.moto_server.threaded_moto_server import make_server  # Werkzeug's
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app

KEY = "test"  # moto takes any

_buckets = itertools.count()


class Storage:
    """One bucket of the server, as this process sees it; pods see it at an address of their own."""

    def __init__(self, bucket: str, here: str, for_pods: str) -> None:
        self.bucket, self.for_pods = bucket, for_pods
        self.refused = 0  # requests of pods that were answered with 503
        self._refusals: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self.client = boto3.client(
            "s3", endpoint_url=here, region_name="us-east-1", aws_access_key_id=KEY, aws_secret_access_key=KEY
        )

    @property
    def root(self) -> str:
        return f"s3://{self.bucket}"

    def environment(self) -> dict[str, str]:
        """What a cluster's operator gives to every pod."""
        return {
            "FLYTE_AWS_ENDPOINT": self.for_pods,
            "FLYTE_AWS_ACCESS_KEY_ID": KEY,
            "FLYTE_AWS_SECRET_ACCESS_KEY": KEY,
        }

    def refuse(self, method: str, part: str, times: int) -> None:
        """Answer 503 to the next so many requests of pods for an address with `part` in it."""
        with self._lock:
            self._refusals += [(method, part)] * times

    def refuses(self, environ: dict[str, Any]) -> bool:
        """Whether a request is one of those."""
        with self._lock:
            for method, part in self._refusals:
                if environ["REQUEST_METHOD"] == method and part in environ["PATH_INFO"]:
                    self._refusals.remove((method, part))
                    self.refused += 1
                    return True
        return False

    def put(self, uri: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=self._key(uri), Body=content)

    def get(self, uri: str) -> bytes | None:
        """The object's content; None when it is not there."""
        try:
            return bytes(self.client.get_object(Bucket=self.bucket, Key=self._key(uri))["Body"].read())
        except self.client.exceptions.NoSuchKey:
            return None

    def list(self, prefix: str = "") -> list[str]:
        """The addresses of the objects below an address."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self._key(prefix))
        return [f"{self.root}/{entry['Key']}" for page in pages for entry in page.get("Contents", ())]

    def remove(self, prefix: str) -> int:
        """Delete every object below an address; returns how many there were."""
        found = self.list(prefix)
        for uri in found:
            self.client.delete_object(Bucket=self.bucket, Key=self._key(uri))
        return len(found)

    def signed(self, uri: str) -> str:
        """An address that a client without credentials may write to."""
        words = {"Bucket": self.bucket, "Key": self._key(uri)}
        return str(self.client.generate_presigned_url("put_object", Params=words, ExpiresIn=3600))

    def _key(self, uri: str) -> str:
        return uri.removeprefix(self.root).lstrip("/")


@contextmanager
def s3() -> Iterator[Storage]:
    """The server with an empty bucket."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it has a line for each request
    moto = DomainDispatcherApplication(create_backend_app)

    def pods(environ: dict[str, Any], start_response: Any) -> Any:
        if storage.refuses(environ):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))  # the client may still be sending
            start_response("503 Slow Down", [("Content-Type", "application/xml"), ("x-amz-request-id", "0")])
            return [b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"]
        return moto(environ, start_response)

    with served(moto) as here, served(pods) as for_pods:
        storage = Storage(f"flyte-{next(_buckets)}", here, for_pods)
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
