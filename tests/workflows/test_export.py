"""`baton export`: models and rows, in folders and on a hub on this machine."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from baton.tasks.core.job import open_job
from baton.tasks.core.manifest import content_digest, read_manifest, write_manifest
from baton.tasks.publish.publish import work
from baton.workflows.export import main
from tests.docs.pages import commands
from tests.hub import USER, Hub
from tests.posttrain.tiny import tiny_model
from tests.publish.conftest import Chain, hub, sealed
from tests.publish.test_card import tuned_adapter
from tests.tracking.conftest import empty_store, home

__all__ = ["empty_store", "home", "hub", "sealed"]
ROWS = {
    "row_kind": "prompt_completion", "format": "prompt_completion", "conversational": False,
    "columns": ["prompt", "completion"], "rows": 2, "held_out_rows": 1, "duplicates": 1, "faulty": 0, "contaminated": 0,
}  # fmt: skip


def export(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def published(home: Path, sealed: Chain) -> Path:
    """A published model in the home folder."""
    work(open_job(sealed.job(home / "jobs" / "publish-1", {"name": "tiny"}, "model", "base", "eval_grpo")))
    return home / "jobs" / "publish-1" / "output"


@pytest.fixture
def rows(home: Path) -> Path:
    folder = home / "jobs" / "rows-1" / "output"
    folder.mkdir(parents=True)
    lines = [json.dumps({"prompt": f"{number} + 1 =", "completion": f" {number + 1}"}) for number in range(3)]
    (folder / "train.jsonl").write_text("\n".join(lines[:2]) + "\n")
    (folder / "held_out.jsonl").write_text(lines[2] + "\n")
    (folder / "rows.json").write_text('{"source": "/home/someone/rows.jsonl"}')
    write_manifest(folder, "rows", ROWS, title="rows-sums")
    return folder


@pytest.mark.parametrize("named", ["by name", "by digest", "by folder"])
def test_a_published_model_is_exported_as_it_was_published(published: Path, tmp_path: Path, named: str) -> None:
    digest = read_manifest(published).digest
    name = {"by name": "tiny", "by digest": digest[:8], "by folder": str(published)}[named]
    done = export(name, tmp_path / "new" / "gift")
    assert done.exit_code == 0, done.output
    gift = tmp_path / "new" / "gift"
    assert content_digest(gift) == digest and not (gift / "manifest.json").exists()
    assert not any(path.samefile(published / path.name) for path in gift.iterdir() if path.is_file())
    assert [*gift.parent.iterdir()] == [gift]


def test_a_model_that_was_not_published_gets_a_card_of_what_made_it(home: Path, sealed: Chain, tmp_path: Path) -> None:
    for name, path in sealed.paths.items():
        shutil.copytree(path, home / "jobs" / name / "output")
    done = export("grpo", tmp_path / "gift")
    assert done.exit_code == 0, done.output
    card = (tmp_path / "gift" / "README.md").read_text()
    assert "# grpo" in card and "base → grpo" in card and "| sums.right | 50.0 % ± 1.0 |" in card
    assert sealed.manifests["corpus"].digest in card and "/home/someone" not in card
    weights = "model.safetensors"
    assert (tmp_path / "gift" / weights).read_bytes() == (sealed.paths["model"] / weights).read_bytes()


def test_an_adapter_comes_with_its_base(home: Path, tmp_path: Path) -> None:
    base = tiny_model(home / "jobs" / "base-1" / "output")
    adapter = tuned_adapter(base, home / "jobs" / "sft-1")
    done = export("sft", tmp_path / "gift")
    assert done.exit_code == 0, done.output
    gift = tmp_path / "gift"
    assert (gift / "base/model.safetensors").read_bytes() == (base / "model.safetensors").read_bytes()
    given = (gift / "adapter_model.safetensors").read_bytes()
    assert given == (adapter / "adapter/adapter_model.safetensors").read_bytes()
    assert "This is a LoRA adapter together with its base" in (gift / "README.md").read_text()


def test_the_same_content_is_there_already_and_other_files_are_never_touched(published: Path, tmp_path: Path) -> None:
    gift = tmp_path / "gift"
    assert "exported to" in export("tiny", gift).output
    assert "is already in" in export("tiny", gift).output
    (gift / "notes.txt").write_text("mine")
    refused = export("tiny", gift)
    assert refused.exit_code == 1 and "has other files already. Choose a new folder" in refused.output
    assert (gift / "notes.txt").read_text() == "mine"
    for taken in (gift / "notes.txt", Path("/")):
        assert "cannot be replaced by a folder" in export("tiny", taken).output
    assert "no such file or directory. Fix that, or choose another folder" in export("tiny", "/proc/gift").output
    assert "is in Baton's home" in export("tiny", published / "gift").output
    assert not [*tmp_path.glob("*.partial")]


def test_a_damaged_model_is_not_exported(published: Path, tmp_path: Path) -> None:
    content = bytearray((published / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (published / "model.safetensors").unlink()
    (published / "model.safetensors").write_bytes(content)
    refused = export("tiny", tmp_path / "gift")
    assert refused.exit_code == 1 and "model.safetensors was changed" in refused.output
    assert not (tmp_path / "gift").exists()


def test_an_unknown_name_lists_the_known_ones(published: Path, tmp_path: Path) -> None:
    done = export("tinny", tmp_path / "gift")
    assert done.exit_code == 1 and "tiny" in done.output.partition("which has")[2]


def test_a_model_is_pushed_privately_and_only_once(published: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.used_here(monkeypatch)
    done = export("tiny", "hub:team/tiny")
    assert done.exit_code == 0 and f"pushed to {hub.endpoint}/team/tiny (private), commit " in done.output, done.output
    stored = hub.model("team/tiny")
    assert stored.private and b'path = "team/tiny"  # on the hub' in stored.files["README.md"]
    assert {*read_manifest(published).files} == stored.files.keys() - {".gitattributes"}
    sent = hub.count("PUT")
    assert "is already in" in export("tiny", "hub:team/tiny").output and hub.count("PUT") == sent
    stored.private = False
    assert "publish to everybody with --public" in export("tiny", "hub:team/tiny").output
    assert "(public)" in export("tiny", "hub:team/tiny", "--public").output


def test_rows_are_loaded_from_the_hub_by_their_name(
    rows: Path, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.used_here(monkeypatch)
    done = export("rows-sums", "hub:datasets/team/sums")
    assert done.exit_code == 0, done.output
    stored = hub.dataset("team/sums")
    assert stored.private and stored.files.keys() == {".gitattributes", "README.md", "train.jsonl", "held_out.jsonl"}
    code = "from datasets import load_dataset\nprint(load_dataset('team/sums').shape)"
    environment = os.environ | hub.environment(HF_HOME=str(tmp_path / "cache"))
    words = [sys.executable, "-c", code]
    loaded = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert "{'train': (2, 2), 'test': (1, 2)}" in loaded.stdout, loaded.stderr


def test_rows_are_exported_to_a_folder(rows: Path, tmp_path: Path) -> None:
    done = export(read_manifest(rows).digest[:6], tmp_path / "gift")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "gift").iterdir()) == ["README.md", "held_out.jsonl", "train.jsonl"]
    assert (tmp_path / "gift" / "train.jsonl").read_bytes() == (rows / "train.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rows-sums", "hub:team/sums"], "rows go to hub:datasets/team/sums"),
        (["rows-sums", "hub:sums"], "a repository's name on the hub"),
        (["rows-sums", "gift", "--public"], "--public and --overwrite are about a repository"),
    ],
)
def test_a_target_that_does_not_fit_is_refused(rows: Path, words: list[str], message: str) -> None:
    done = export(*words)
    assert done.exit_code and message in done.output


def test_the_commands_of_the_docs_do_what_the_page_says(
    published: Path, rows: Path, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.used_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    names = {"mine": "tiny", "3fb2c91e": read_manifest(published).digest[:8], "rows-chat": "rows-sums"}
    shown = [words for block, words in commands() if block.page.name == "sharing.md" and words[0] == "baton"]
    for _, command, model, target in shown:
        done = export(names[model], target.replace("my-team", USER))
        assert (command, done.exit_code) == ("export", 0), done.output
    assert (tmp_path / "gift" / "README.md").is_file()
    assert {name for _, name in hub.repositories} == {"team/my-model", "team/my-rows"}
