"""Secrets are never stored."""

import ast
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.infra.errors import UserError
from baton.infra.placement.job import Order, sky_task
from baton.infra.pod_spec import check_secrets
from baton.infra.tracking.execution import begin_execution, current_execution, flush
from baton.infra.tracking.record import tracked
from baton.infra.tracking.redact import (
    HIDDEN,
    SETUP_DIGEST,
    redact,
    redact_code,
    redact_command,
    redact_parts,
    redact_text,
)
from baton.infra.tracking.store import TrackingUnreachable, check_reachable
from baton.tasks.core.job import Job
from baton.tasks.core.manifest import read_manifest
from tests.tracking.conftest import free_port

SECRET = "s3cr3t-of-a-kind"


@pytest.mark.parametrize(
    "field",
    [
        "clientSecret",
        "accessToken",
        "WANDB_KEY",
        "token",
        "hf_token",
        "api_key",
        "apiKey",
        "password",
        "db_password",
        "aws_secret_access_key",
        *("openai_key", "openAIKey", "x-api-key", "auth", "basic_auth", "pass", "db_pass", "sas", "azure_sas", "jwt"),
        *("connection_string", "connectionString", "cookie", "session_cookie", "passphrase", "pwd", "wandb_key"),
        *("smtp.pass", "password2", "slack_webhook_url", "private_key_pem", "Ocp-Apim-Subscription-Key", "SENTRY_DSN"),
    ],
)
def test_a_field_that_says_that_it_is_secret_is_hidden(field: str) -> None:
    secret = f"https://host/{SECRET}" if "url" in field else SECRET
    assert SECRET not in json.dumps(redact({"data": [{field: secret}]}))
    for text in (
        f"{field}={secret}",
        f"{field}: {secret}",
        f"{{'{field}': '{secret}', 'x': 1}}",
        f"--{field} {secret}",
    ):
        assert SECRET not in redact_text(text), text


@pytest.mark.parametrize(
    "harmless",
    [
        {"tokens": 1000},
        {"eos_token": "<|endoftext|>"},
        {"tokenizer": "path"},
        {"max_tokens": 5},
        {"text_field": "text"},
        {"pass": "0.61", "passed": "all", "pass_at": "4", "author": "Ada", "auth": "basic", "compass": "north"},
        {"key": "value", "sort_key": "name", "cache_key": "3f2a", "answer_key": "B", "forward_pass": "bf16"},
    ],
)
def test_what_only_sounds_like_a_secret_is_kept(harmless: dict[str, object]) -> None:
    assert redact(harmless) == harmless


@pytest.mark.parametrize(
    "text",
    [
        f"http://me:{SECRET}@host:5000/x",
        f"postgresql+psycopg2://me:{SECRET}@db/mlflow",
        f"s3 url https://bucket/x?X-Amz-Signature={SECRET}&y=1",
        f"https://host/x?a=1&access_token={SECRET}",
        f"hf_{SECRET.replace('-', 'x') * 2}",
        f"refused: ghp_{SECRET.replace('-', 'x') * 2}!",
        f"export X_PASSWORD={SECRET}",
        f"export X_PASSWORD='{SECRET} and more'",
        f'WANDB_API_KEY="{SECRET}" python train.py',
        f"export SOME_KEY={SECRET}; AWS_SECRET_ACCESS_KEY={SECRET}",
        f"curl -H 'Authorization: Bearer {SECRET}' http://host",
        f"Authorization: Basic {SECRET}",
        f"Authorization: token {SECRET}",
        f'{{"Authorization": "ApiKey {SECRET}"}}',
        f"login --token {SECRET}",
        f"login --password={SECRET}",
        f"curl -u me:{SECRET} http://host",
        f"DefaultEndpointsProtocol=https;AccountKey={SECRET}",
        f"{{'api_key': '{SECRET}'}}",
        f"password: {SECRET}",
        f"http://me:{SECRET}@{SECRET}@host",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{SECRET}",
        f"https://host/v1?a=1&amp;api-key={SECRET}",
        f"https://host/v1?X-Goog-Signature={SECRET}",
        f"\\u0026api_key={SECRET}",
        f"//me:{SECRET}@host/x",
        f"Cookie: theme=dark; session={SECRET}",
        f"Set-Cookie: id={SECRET}; Path=/",
        f"X-Api-Key: {SECRET}",
        f"Authorization: Digest username=me, response={SECRET}",
        f"https://hooks.slack.com/services/T000/B000/{SECRET}",
        f"https://discord.com/api/webhooks/123/{SECRET}",
        f"https://ptb.discordapp.com/api/v10/webhooks/123/{SECRET}",
        f"https://api.telegram.org/bot123:{SECRET}/sendMessage",
        f"https://company.webhook.office.com/webhookb2/{SECRET}",
        f"slack_webhook_url: https://host/{SECRET}",
        f"xapp-1-{SECRET}",
        f"GOCSPX-{SECRET * 2}",
        f"connection_string=Server=host;Password={SECRET};Encrypt=true",
        f'connectionString: "Server=host;Pwd={SECRET}"',
        f'{{"text": "{{\\"password\\": \\"{SECRET}\\"}}"}}',
        f'{{"password": "a\\"{SECRET}"}}',
        f"password=b'{SECRET}'",
        f'api_key=SecretStr("{SECRET}")',
        f"message cut in api_key='{SECRET}",
        f"database:\n  password: {SECRET}\n",
        f"auth:\n  password:          {SECRET}\n",
        f"kubectl create secret --from-literal=HF_TOKEN={SECRET}",
        f"'password' => '{SECRET}'",
        f'password := "{SECRET}"',
        f"os.environ['OPENAI_API_KEY'] = '{SECRET}'",
        f"{{'name': 'OPENAI_API_KEY', 'value': '{SECRET}'}}",
        f"- {{name: DB_PASSWORD, value: {SECRET}}}",
        f"PGPASSWORD={SECRET} psql",
        f"JSESSIONID={SECRET}",
        f"csrftoken={SECRET}",
        f"secret_key_base: {SECRET}",
        f"GITHUB_TOKEN_OLD={SECRET}",
        f"<password>{SECRET}</password>",
        f"requests.get(url, auth=('me', '{SECRET}'))",
        f"'api_keys': ['one', '{SECRET}']",
        f"curl -b 'session={SECRET}' http://host",
        f"curl -ume:{SECRET} http://host",
        f"docker login -u me -p {SECRET}",
        f"mysql -u root -p{SECRET} mlflow",
        f"\x1b[33mpassword\x1b[0m=\x1b[35m{SECRET}\x1b[0m",
        f"ValueError('refused:\\nhf_{SECRET.replace('-', 'x') * 2}')",
        f"?next=https%3A%2F%2Fhost%2F%3Faccess_token%3D{SECRET}",
        f"https://host/?t=%22hf_{SECRET.replace('-', 'x') * 2}%22",
        f"Incorrect API key provided: Aa1{SECRET}",
        f"ENV WANDB_API_KEY Aa1{SECRET}",
        f"machine host login me password Aa1{SECRET}",
    ],
)
def test_secrets_in_text_are_hidden(text: str) -> None:
    assert SECRET not in redact_text(text) and SECRET.replace("-", "x") not in redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "num_tokens=100, eos_token=<|im_end|>",
        "unexpected token: foo",
        'export X_PASSWORD="$SECRET_OF_THE_ENVIRONMENT"',
        "export X_TOKEN=$(cat /run/secrets/token)",
        'curl -H "Authorization: Bearer $HF_TOKEN"',
        "sort_key=name PATH=/usr/bin",
        "KeyError: 'model'",
        ". /shared/baton/.venv/bin/activate",
        "pip install git+ssh://git@github.com/org/repository",
        "export GOOGLE_APPLICATION_CREDENTIALS=/shared/key.json",
        "docker run -u 1000:1000 image",
        "tokens: 1,234 per second, time_to_first_token=0.3s",
        "passed: 3, pass: 0.61, code.pass=61.0%, pass_at: 4",
        "second pass: reading documents; forward_pass: slow; bypass: yes",
        "author: Ada, compass: north, auth: basic, webhook: failed",
        "a statistic's key: value, cache_key=3f2a9, answer_key: B",
        "basic functionality, bearer tokens are refused",
        "    token = tokenizer.decode(ids)",
        "    if token == eos: tokens=['a', 'b']",
        "image:tag@sha256:abc",
        "https://host/x?page=3&q=token",
        "HF_TOKEN: its Secret is missing",
        "pod.secrets: [HF_TOKEN, WANDB_API_KEY]",
        "token: expired",
        "send it in the header Authorization: Bearer KEY",
        "the header `Authorization: Bearer KEY`: it is needed",
        "tls_key: /etc/tls/server.key",
        "PWD=/srv/model ssh_key=~/.ssh/id_rsa s3_key: data/part-0.parquet",
        "BATON_CACHE_KEY=3f2a9 SORT_KEY=name",
        "client = OpenAI(api_key=api_key, token=self._token)",
        "api_key: str | None = None",
        "session.auth = (user, password)",
        "model.forward(tokens=tensor([1, 2]))",
        "fw_compile_the_model_before_run, rnd_numbers_of_the_seed, sk-learn-is-a-library",
        "Basic arithmetic-problems, basic level 2",
        "postgresql://{user}:{password}@{host}/mlflow, https://host/v1?key={key}",
        "no -----BEGIN PRIVATE KEY----- in the file\nstep 1",
        "\x1b[32mstep 1\x1b[0m loss 2.3",
    ],
)
def test_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize("part", ["a-", "a=", "a:", "x://", "--a ", "?a", '_TOKEN="', "bearer ", "-u a:", '"', "a"])
def test_a_long_line_is_read_in_a_moment(part: str) -> None:
    started = time.monotonic()
    redact_text(part * (500_000 // len(part)))
    assert time.monotonic() - started < 10


def test_what_follows_a_private_key_stays() -> None:
    key = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n{SECRET}\n-----END PRIVATE KEY-----\nstep 1"
    shown = f"-----BEGIN PRIVATE KEY-----\n{HIDDEN}\n{HIDDEN}\n-----END PRIVATE KEY-----\nstep 1"
    assert redact_text(key) == "".join(redact_parts(key.splitlines(keepends=True))) == shown


@pytest.mark.parametrize("folder", ["infra", "tasks", "workflows", "images"])
def test_no_message_of_ours_is_bent(folder: str) -> None:
    """Redaction leaves every text in the code unchanged, with a name in its placeholders."""
    for path in Path(folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "NAME" for part in node.values)
                assert redact_text(text) == text, f"{path}:{node.lineno}"


def test_templates_and_patterns_of_addresses_in_a_function_are_no_secrets() -> None:
    code = 'ADDRESS = re.compile(r"https?://\\S+|[\\w.]+@\\w+")\nURL = f"https://{user}:{password}@host/x?key={key}"\nfw_compile_the_model_before_run()\n'
    assert redact_code(code) == code


def test_a_missing_secret_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError) as placed:
        sky_task("job", Order({"secrets": ["MY_TOKEN", "MY_KEY"]}, "/storage", "one", {}), {}, ["true"], "/out")
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "f0")
    with pytest.raises(UserError) as in_pod:
        check_secrets(["MY_TOKEN", "MY_KEY"])
    for refused in (in_pod, placed):
        assert redact_text(refused.value.message) == refused.value.message
        assert "MY_KEY" in refused.value.message and "MY_TOKEN" in refused.value.message


def test_a_json_text_can_be_read_afterwards() -> None:
    assert json.loads(redact_text(json.dumps({"password": SECRET, "done": 1}))) == {"password": HIDDEN, "done": 1}


def test_of_a_setup_a_digest_is_kept() -> None:
    kept = redact({"sft": {"placement": {"setup": "echo hello", "nodes": 2}}})["sft"]["placement"]
    assert kept.keys() == {"nodes", SETUP_DIGEST}
    assert redact({"placement": {"setup": None}}) == {"placement": {"setup": None}}


def test_a_recipe_on_the_command_line_is_redacted_as_a_recipe() -> None:
    recipe = json.dumps({"sft": {"placement": {"setup": "echo hello"}}})
    shown = redact_command(["run", "--recipe", recipe])
    assert "hello" not in shown[-1] and SETUP_DIGEST in shown[-1]


@pytest.mark.parametrize(
    "words", [["--token", SECRET], [f"--api-key={SECRET}"], [f"HF_TOKEN={SECRET}"], [f"http://a:{SECRET}@h"]]
)
def test_secrets_on_the_command_line_are_hidden(words: list[str]) -> None:
    shown = redact_command(["run", *words, "--recipe", "laptop.yaml"])
    assert SECRET not in " ".join(shown)
    assert shown[-2:] == ["--recipe", "laptop.yaml"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(alphabet="abc /.<>|", max_size=8),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["model", "lr", "seed"]), inner),
        max_leaves=10,
    )
)
def test_a_spec_without_secrets_stays_as_it_is(value: object) -> None:
    assert redact(value) == value


def test_nothing_in_the_home_folder_holds_a_secret(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["pyflyte", "run", "--hf-token", SECRET])
    begin_execution("one", {"data": {"source": f"https://me:{SECRET}@host/set", "hf_token": SECRET}})
    with pytest.raises(RuntimeError), tracked("data", tmp_path / "job", spec={"hf_token": SECRET}, inputs={}) as record:
        record.log_output("corpus", "c" * 64, {"source": f"https://me:{SECRET}@host/set"})
        raise RuntimeError(f"https://me:{SECRET}@host/set: refused")
    flush(60)
    assert (current_execution("one") / "data" / "pushed.json").exists()
    kept = [path for path in home.rglob("*") if path.is_file()]
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []


def test_an_address_with_a_password_is_never_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{SECRET}@127.0.0.1:{free_port()}")
    with pytest.raises(TrackingUnreachable) as refused:
        check_reachable()
    assert SECRET not in str(refused.value)
    assert "127.0.0.1" in str(refused.value)


CODE = "token = tokens[0]\npassword = read()\nURL = 'https://me:hunter22@host/x'\n"


def test_a_manifest_is_redacted_and_keeps_the_code_of_functions_and_the_names_of_variables(tmp_path: Path) -> None:
    spec = {
        "function": {"name": "mine.py:rows", "source": {"mine.py": CODE}},
        "arguments": {"api_key": "hunter22"},
        "source": {"path": "s3://me:hunter22@bucket/x"},
        "placement": {"secrets": ["HF_TOKEN"]},
    }
    job = Job(tmp_path, "rows", "rows", spec, {})
    job.empty_output()
    job.finish()
    found = read_manifest(tmp_path / "output").spec
    assert found["function"]["source"]["mine.py"] == CODE.replace("me:hunter22@", "[redacted]@")
    assert (found["arguments"]["api_key"], found["placement"]["secrets"]) == (HIDDEN, ["HF_TOKEN"])
    assert "hunter22" not in json.dumps(found)
