"""MLflow and the lineage pages behind infra/proxy/nginx.conf, as their clients see them."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import mlflow
import pytest
import requests
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

USER, PASSWORD = "ada", "a password"
BIG = 20 * 2**20  # bytes; nginx limits a body to 1 MiB by default
HOST = "mlflow.example:8443"  # MLflow accepts changes from every page on localhost
TO_CHANGE = "/ajax-api/2.0/mlflow/experiments/create"


def passwords_and_certificate(folder: Path) -> None:
    """Make the passwords and the certificate for localhost as described in docs/lineage.md."""
    words = ["openssl", "passwd", "-6", "-stdin"]
    hashed = subprocess.run(words, input=PASSWORD, capture_output=True, text=True, check=True).stdout
    (folder / "htpasswd").write_text(f"{USER}:{hashed}")
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "tls.key", "-out", "tls.crt"]
    subprocess.run(words, cwd=folder, capture_output=True, check=True)
    (folder / "tls.key").chmod(0o644)


@dataclass(frozen=True)
class Proxied:
    url: str
    certificate: Path

    def get(self, path: str, auth: tuple[str, str] | None = (USER, PASSWORD), **more: str) -> requests.Response:
        return requests.get(self.url + path, auth=auth, headers=more, verify=str(self.certificate), timeout=60)

    def change(self, name: str, origin: str) -> int:
        """Return the status of a change that a page of an origin requests."""
        return requests.post(
            self.url + TO_CHANGE,
            json={"name": name},
            auth=(USER, PASSWORD),
            headers={"Host": HOST, "Origin": origin},
            verify=str(self.certificate),
            timeout=60,
        ).status_code

    def client(self, monkeypatch: pytest.MonkeyPatch, password: str = PASSWORD) -> MlflowClient:
        """Return MLflow's client, configured only by its own variables."""
        monkeypatch.setenv("MLFLOW_TRACKING_URI", self.url)
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", USER)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
        monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(self.certificate))
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        mlflow.set_tracking_uri(None)
        return MlflowClient()


def nobody_passes_without_a_password(proxied: Proxied) -> None:
    for path in ("/", "/lineage/executions", "/lineage/executions.json", "/health", "/api/2.0/mlflow/experiments/get"):
        assert proxied.get(path, auth=None).status_code == 401, path
        assert proxied.get(path, auth=(USER, "another")).status_code == 401, path
    assert proxied.get("/healthz", auth=None).status_code == 204  # the kubelet's probe, which discloses nothing


def the_pages_and_mlflow_answer(proxied: Proxied) -> None:
    assert "Executions" in proxied.get("/lineage/executions").text
    assert "executions" in proxied.get("/lineage/executions.json").json()
    assert proxied.get("/version").text
    assert "<title>MLflow</title>" in proxied.get("/").text


def mlflow_s_client_works(proxied: Proxied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Log a metric and a file above nginx's default limit with MLflow's client, and read both. Returns the run's id."""
    client = proxied.client(monkeypatch)
    run = str(client.create_run(client.create_experiment("proxied")).info.run_id)
    client.log_metric(run, "loss", 0.5)
    (tmp_path / "big").write_bytes(bytes(BIG))
    client.log_artifact(run, str(tmp_path / "big"))
    (tmp_path / "back").mkdir()
    assert Path(client.download_artifacts(run, "big", str(tmp_path / "back"))).stat().st_size == BIG
    assert client.get_run(run).data.metrics == {"loss": 0.5}
    with pytest.raises(MlflowException, match="401"):
        proxied.client(monkeypatch, "another").get_run(run)
    return run


def only_its_own_pages_change_something(proxied: Proxied) -> None:
    """A browser sends the password with every request, even if another page caused it."""
    assert proxied.change("own", f"https://{HOST}") == 200
    for origin in (f"http://{HOST}", f"https://{HOST}.evil", f"https://evil-{HOST}", "https://evil.example", "null"):
        assert proxied.change("foreign", origin) == 403, origin
