"""A recipe with a secret in any place is refused. The message suggests another way to pass it to the function or the
storage."""

from pathlib import Path
from typing import Any

import pytest

from baton.infra.tracking.redact import HIDDEN
from baton.workflows.checks.table import checked
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.error import RecipeError

SECRETS: dict[str, dict[str, Any]] = {
    "by its name": {"api_key": "hunter22"},
    "deep in a list": {"headers": [{"Authorization": "Basic aHVudGVyMjI="}]},
    "of a user": {"store": "postgresql://me:hunter22@host/db"},
    "presigned": {"data": "https://b.s3.amazonaws.com/k?X-Amz-Credential=AK&X-Amz-Signature=hunter22"},
    "SAS": {"data": "https://a.blob.core.windows.net/c/k?sv=2022&sig=hunter22"},
    "Hugging Face": {"x": "hf_" + "a" * 30},
    "GitHub": {"x": "ghp_" + "a" * 36},
    "OpenAI": {"x": "sk-proj-" + "a" * 30},
    "AWS": {"x": "AKIA" + "A" * 16},
    "JWT": {"x": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"},
    "private key": {"x": "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----"},
    "Stripe": {"x": "sk_live_" + "a" * 24},
}
ENV = ".environment."
CODE = """import os
token = os.environ.get("MY_KEY")
password = token
def documents(**words): return ["text"]
def rows(**words): return [{"text": "text"}]
def keep(document): return True
"""


@pytest.fixture(autouse=True)
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_KEY", "hunter22")
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path / "mine.py"


def problems(**sections: Any) -> dict[str, str]:
    """Return the messages of the problems by path."""
    try:
        checked(Recipe.model_validate({"name": "r"} | sections))
    except RecipeError as error:
        assert "hunter22" not in str(error)
        return {
            problem.path: problem.allowed
            for problem in error.problems
            if problem.value == HIDDEN or ENV in problem.path
        }
    return {}


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_among_arguments_is_refused(kind: str) -> None:
    corpus = {"source": {"kind": "function", "function": "mine.py:documents", "arguments": SECRETS[kind]}}
    found = problems(corpus=corpus, data={"mine": {"function": "mine.py:rows", "arguments": SECRETS[kind]}})
    for path, section in (("corpus.source", "corpus.source"), ("data.mine", "data.mine")):
        (allowed,) = [said for place, said in found.items() if place.startswith(f"{path}.arguments.")]
        assert f"{section}.environment: [NAME]" in allowed


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("corpus.source.path", "s3://KEY:hunter22@bucket/text"),
        ("corpus.curate.0.classifier.model", "https://h/model.bin?sig=hunter22"),
        ("data.mine.path", "az://container/rows.jsonl?sv=1&sig=hunter22"),
        ("start_from.model", "https://me:hunter22@host/model"),
    ],
)
def test_an_address_with_credentials_is_refused(path: str, address: str) -> None:
    section, *fields = path.split(".")
    recipes: dict[str, Any] = {
        "corpus": {"source": {"kind": "files", "path": "."}},
        "data": {"mine": {"path": "."}},
        "start_from": {"model": "."},
    }
    if "curate" in fields:
        recipes["corpus"]["curate"] = [{"classifier": {"model": address, "keep": ["x"]}}]
    else:
        at = recipes[section]
        for field in fields[:-1]:
            at = at[field]
        at[fields[-1]] = address
    found = problems(**{section: recipes[section]})
    assert "environment variables" in found[path]


def test_source_with_a_token_is_refused_and_reading_a_variable_is_not(functions: Path) -> None:
    recipe = {"corpus": {"source": {"kind": "stdlib"}, "curate": [{"function": "mine.py:keep"}]}}
    assert problems(**recipe) == {}
    functions.write_text(CODE + f"KEY = 'hf_{'a' * 30}'\n")
    assert "Read an environment variable instead" in problems(**recipe)["corpus.curate.0.function"]


def test_a_variable_that_a_function_reads_must_be_set_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def recipe(**placed: Any) -> dict[str, Any]:
        return {
            "corpus": {"source": {"kind": "function", "function": "mine.py:documents", "environment": ["MY_KEY"]},
                       "curate": [{"function": "mine.py:keep", "environment": ["MY_KEY"]}]} | placed,
            "data": {"mine": {"function": "mine.py:rows", "environment": ["MY_KEY"]}},
        }  # fmt: skip

    assert problems(**recipe()) == {}
    monkeypatch.delenv("MY_KEY")
    found = problems(**recipe())
    assert list(found) == ["corpus.source.environment.0", "corpus.curate.0.environment.0", "data.mine.environment.0"]
    assert set(found.values()) == {"an environment variable that is set here: export MY_KEY=…"}
    placed = problems(**recipe(placement={"infra": ["slurm"], "image": "x"}))
    assert "placement.secrets: [MY_KEY]" in placed["corpus.source.environment.0"]
    assert HIDDEN not in str(found)
