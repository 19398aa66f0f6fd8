"""An S3 server in this process (moto): all that the pods of a test share. It fails on demand, for pods alone."""

import itertools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

KEY = "test"  # moto takes any
EXEMPT = "baton-tests"  # in the user agent of this process's requests

_buckets = itertools.count()


class Storage:
    """One bucket of the server."""

    def __init__(self, endpoint: str, bucket: str) -> None:
        self.endpoint, self.bucket = endpoint, bucket
        self.refused = 0  # requests of pods that were answered with 503
        self._refusals: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=KEY,
            config=Config(user_agent_extra=EXEMPT, s3={"addressing_style": "path"}),
        )

    @property
    def root(self) -> str:
        return f"s3://{self.bucket}"

    def environment(self) -> dict[str, str]:
        """What a cluster's operator gives to every pod."""
        return {
            "FLYTE_AWS_ENDPOINT": self.endpoint,
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
            for method, part in self._refusals if EXEMPT not in environ.get("HTTP_USER_AGENT", "") else ():
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
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                return None
            raise

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

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        if storage.refuses(environ):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))  # the client may still be sending
            start_response("503 Slow Down", [("Content-Type", "application/xml"), ("x-amz-request-id", "0")])
            return [b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"]
        return moto(environ, start_response)

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    storage = Storage(f"http://127.0.0.1:{server.server_port}", f"flyte-{next(_buckets)}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        storage.client.create_bucket(Bucket=storage.bucket)
        yield storage
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
