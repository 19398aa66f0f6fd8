"""The folder of an lm-eval task is part of the cache key, and is sent with the run."""

import os
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from baton.infra.errors import UserError
from baton.infra.storage.address import DIGEST, pack
from baton.tasks.core.job import StageError
from baton.tasks.evaluate import task_files
from baton.tasks.evaluate.spec import EvaluateSpec, EvaluatorSpec
from baton.tasks.evaluate.task_configs import load_config, register
from baton.tasks.evaluate.task_files import Gathered, gathered, place, with_local_data

LARGE = "x" * 1_500_000


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> Iterator[Path]:
    """A project in the current directory, with a folder of tasks."""
    (tmp_path / "project" / "tasks").mkdir(parents=True)
    with chdir(tmp_path / "project"):
        yield tmp_path / "project"


def write(**files: str) -> None:
    """Write files; `tasks__data__a_jsonl="…"` is tasks/data/a.jsonl."""
    for name, text in files.items():
        path = Path(name.replace("__", "/").replace("_", "."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def task(config: str = "") -> str:
    return f"task: mine\ndataset_path: json\n{config}\n"


def found(*tasks: str) -> set[str]:
    of_all = gathered(tasks or ["tasks/mine.yaml"])
    return {str((of_all.root / name).relative_to(Path.cwd())) for name in (*of_all.texts, *of_all.digests)}


# Files that belong to an evaluation


def test_all_of_the_folder_is_found_and_nothing_beside_it() -> None:
    write(
        tasks__mine_yaml=task(), tasks__utils_py="", tasks__data__deep__a_jsonl="1", tasks___hidden="2", other_txt="3"
    )
    assert found() == {"tasks/mine.yaml", "tasks/utils.py", "tasks/data/deep/a.jsonl"}


def test_tasks_of_two_folders_have_the_files_of_both() -> None:
    write(one__mine_yaml=task(), one__a_jsonl="1", two__other_yaml="task: other\n", two__b_jsonl="2", three__c_txt="3")
    of_all = gathered(["one/mine.yaml", "hellaswag", "two/other.yaml"])
    assert of_all.tasks == ["one/mine.yaml", "hellaswag", "two/other.yaml"]
    assert of_all.texts.keys() == {"one/mine.yaml", "one/a.jsonl", "two/other.yaml", "two/b.jsonl"}


def test_baton_s_home_is_left_out(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a run change during the run."""
    monkeypatch.setenv("BATON_HOME", str(project / "tasks" / "runs"))
    write(tasks__mine_yaml=task(), tasks__runs__jobs__log_txt="2")
    assert found() == {"tasks/mine.yaml"}


def test_a_link_to_data_elsewhere_is_the_users_own(project: Path) -> None:
    elsewhere = project.parent / "disk"
    elsewhere.mkdir()
    (elsewhere / "a.jsonl").write_text("1")
    Path("tasks/data").symlink_to(elsewhere)
    write(tasks__mine_yaml=task("dataset_kwargs: {data_dir: data}"))
    assert found() == {"tasks/mine.yaml", "tasks/data/a.jsonl"}


def test_tasks_by_name_have_no_files() -> None:
    write(tasks__mine_yaml=task())
    assert gathered(["hellaswag"]) == Gathered(["hellaswag"], Path.cwd(), {}, {})


# Refused tasks


def test_a_task_in_the_current_directory_is_refused_with_a_way_out() -> None:
    """Otherwise every change of a recipe in the directory would change the evaluation."""
    write(mine_yaml=task())
    with pytest.raises(UserError, match=r"contains the current directory: put the task, .* into a separate folder"):
        gathered(["mine.yaml"])


def test_a_folder_of_too_many_files_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_files, "MOST_FILES", 2)
    write(tasks__mine_yaml=task(), tasks__a_txt="1", tasks__b_txt="2")
    with pytest.raises(UserError, match="has 3 files, more than 2: put the task into a separate folder"):
        gathered(["tasks/mine.yaml"])


def test_a_python_file_that_imports_from_elsewhere_is_refused() -> None:
    """The imported file would be missing on the machine that runs the evaluation."""
    write(tasks__mine_yaml=task(), tasks__utils_py="import json\nfrom shared import words\n", shared__words_py="")
    with pytest.raises(UserError, match=r"utils.py: imports shared.words from .*: copy it into .*tasks, all of which"):
        gathered(["tasks/mine.yaml"])
    write(tasks__shared__words_py="")
    assert found() == {"tasks/mine.yaml", "tasks/utils.py", "tasks/shared/words.py"}


@pytest.mark.parametrize("name", ["{outside}", "../../secret.jsonl"])
def test_a_python_file_that_names_a_file_elsewhere_is_refused(project: Path, name: str) -> None:
    outside = project.parent / "secret.jsonl"
    outside.write_text("1")
    named = name.format(outside=outside)
    write(tasks__mine_yaml=task(), tasks__utils_py=f"open({named!r}), '/dev/null', '/no/such', 'and/or'\n")
    with pytest.raises(UserError, match=rf"utils.py: names {outside}: copy it into .*tasks"):
        gathered(["tasks/mine.yaml"])


@pytest.mark.parametrize("how", ["data_files: {0}", "data_dir: {0}", "data_files: {{test: ['{0}']}}", "mine: {0}"])
@pytest.mark.parametrize("name", ["{outside}", "../secret.jsonl"])
def test_data_outside_of_the_folder_is_refused(project: Path, name: str, how: str) -> None:
    outside = project / "secret.jsonl"
    outside.write_text("1")
    write(tasks__mine_yaml=task(f"dataset_kwargs: {{{how.format(name.format(outside=outside))}}}"))
    with pytest.raises(StageError, match=r"secret.jsonl': is outside of the YAML file's folder.*name it secret.jsonl"):
        load_config(Path("tasks/mine.yaml").absolute(), Path("tasks").absolute())


@pytest.mark.parametrize("name", ["{outside}", "../base.yaml"])
def test_an_included_file_outside_of_the_folder_is_refused(project: Path, name: str) -> None:
    (project / "base.yaml").write_text(task())
    write(tasks__mine_yaml=f"include: {name.format(outside=project / 'base.yaml')}\ntask: mine\n")
    with pytest.raises(StageError, match=r"base\.yaml': is outside of the YAML file's folder"):
        load_config(Path("tasks/mine.yaml").absolute(), Path("tasks").absolute())


@pytest.mark.parametrize(
    "text", ["output_type: generate_until\noutput_type: multiple_choice", "metadata: {n: 1, n: 2}"]
)
def test_a_key_that_occurs_twice_is_named(text: str) -> None:
    write(tasks__mine_yaml=task(text))
    with pytest.raises(StageError, match=r"mine\.yaml: (output_type|n) occurs twice in one mapping, of which lm-eval"):
        load_config(Path("tasks/mine.yaml").absolute(), Path("tasks").absolute())


@pytest.mark.parametrize("text", ["metadata: &a [*a, 1]\n", "metadata: &a {<<: {c: 1}, b: 1}\n"])
def test_a_file_that_repeats_itself_ends(text: str) -> None:
    write(tasks__mine_yaml=task(text))
    assert load_config(Path("tasks/mine.yaml").absolute(), Path("tasks").absolute())["task"] == "mine"


def test_data_above_a_task_of_a_subfolder_is_inside_where_the_folder_above_has_a_task_too() -> None:
    write(tasks__mine_yaml=task(), tasks__a_jsonl="1")
    write(tasks__deep__b_yaml="task: b\ndataset_path: json\ndataset_kwargs: {data_files: ../a.jsonl}\n")
    config = load_config(Path("tasks/deep/b.yaml").absolute(), Path("tasks").absolute())
    assert config["dataset_kwargs"]["data_files"] == str(Path("tasks/a.jsonl").absolute())


# Groups


def registered(*tasks: str) -> set[str]:
    """Return the tasks and groups that lm-eval finds."""
    of_all = gathered(tasks)
    manager, _ = register(of_all.tasks, of_all.texts, of_all.root)
    return {name for name, entry in manager.task_index.items() if entry.cfg}


def test_members_of_a_group_are_found_beside_it_and_below() -> None:
    write(
        tasks__all_yaml="group: all\ntask: [a, {task: b, num_fewshot: 1}, {group: inner, task: [tagged]}]\n",
        tasks__a_yaml=task().replace("mine", "a"),
        tasks__deep__b_yaml="include: ../base.yaml\ntask: b\n",
        tasks__base_yaml="dataset_path: json\n",
        tasks__c_yaml="task: c\ntag: [tagged]\ndataset_path: json\n",
        tasks__other_yaml="task: other\ndataset_path: json\n",
    )
    assert registered("tasks/all.yaml") >= {"all", "a", "b", "c"}
    assert "other" not in registered("tasks/all.yaml")


def test_other_yaml_files_in_the_folder_do_no_harm() -> None:
    """The other files may be another version of the task, or no task at all."""
    write(
        tasks__mine_yaml=task(), tasks__old__mine_yaml=task("colour: red"), tasks__notes_yaml="- [", tasks__b_yaml="1"
    )
    assert registered("tasks/mine.yaml") >= {"mine"}


# The cache key


def key(task: str = "tasks/mine.yaml") -> dict[str, Any]:
    return EvaluateSpec.model_validate({"mine": {"lm_eval": [task]}}).pinned().identity()


@pytest.mark.parametrize("size", [10, 1_500_000])
def test_changed_data_is_another_evaluation_and_moved_data_the_same(project: Path, size: int) -> None:
    write(tasks__mine_yaml=task("dataset_kwargs: {data_files: a.jsonl}"), tasks__a_jsonl="a" * size)
    before, about = key(), Path("tasks/a.jsonl").stat()
    write(tasks__a_jsonl="b" * size)
    os.utime("tasks/a.jsonl", ns=(about.st_atime_ns, about.st_mtime_ns))  # as after rsync -t or tar
    assert key() != before
    write(tasks__a_jsonl="a" * size)
    assert key() == before
    Path("tasks").rename("moved")
    assert key("moved/mine.yaml") == before


def test_small_texts_are_in_the_spec_and_the_rest_by_digest() -> None:
    write(tasks__mine_yaml=task("dataset_kwargs: {data_dir: data}"), tasks__data__a_jsonl="é\r\n")
    write(tasks__data__large_jsonl=LARGE)
    Path("tasks/data/b.parquet").write_bytes(b"PAR1\xff")
    of_all = gathered(["tasks/mine.yaml"])
    assert of_all.texts.keys() == {"mine.yaml", "data/a.jsonl"} and of_all.texts["data/a.jsonl"] == "é\r\n"
    assert of_all.digests.keys() == {"data/large.jsonl", "data/b.parquet"}


# Placement


def placed(of_all: Gathered, folder: Path, where: str) -> dict[str, bytes]:
    place(folder, of_all.texts, of_all.digests, where)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def large() -> Gathered:
    write(tasks__mine_yaml=task("dataset_kwargs: {data_files: data/large.jsonl}"), tasks__data__large_jsonl=LARGE)
    return gathered(["tasks/mine.yaml"])


def test_files_are_placed_again_from_the_folder_and_from_an_archive(
    large: Gathered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    here = placed(large, tmp_path / "here", str(large.root))
    assert here.keys() == {"mine.yaml", "data/large.jsonl"} and here["data/large.jsonl"] == LARGE.encode()
    spec = EvaluatorSpec(lm_eval=["tasks/mine.yaml"]).pinned()
    digest = pack(spec.local_files(), tmp_path / "files.tar")
    assert placed(large, tmp_path / "there", f"file://{tmp_path}/files.tar{DIGEST}{digest}") == here


def test_a_rented_machine_finds_them_in_the_storage(
    large: Gathered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    spec = EvaluateSpec.model_validate({"mine": {"lm_eval": ["tasks/mine.yaml"]}}).pinned()
    sent = spec.sent(f"file://{tmp_path}/storage")
    assert sent.identity() == spec.identity() and str(Path.cwd()) not in sent.model_dump_json()
    where = sent.evaluators()["mine"].task_place
    assert where and placed(large, tmp_path / "there", where)["data/large.jsonl"] == LARGE.encode()


def test_data_that_changed_after_the_start_is_refused(large: Gathered, tmp_path: Path) -> None:
    write(tasks__data__large_jsonl=LARGE + "y")
    with pytest.raises(StageError, match=r"large.jsonl: was changed since the run started"):
        place(tmp_path / "here", large.texts, large.digests, str(large.root))
    Path("tasks/data/large.jsonl").unlink()
    with pytest.raises(StageError, match=r"large.jsonl: cannot read this file of an lm-eval task"):
        place(tmp_path / "there", large.texts, large.digests, str(large.root))


def test_a_name_that_leaves_the_folder_is_not_placed(tmp_path: Path) -> None:
    for texts, digests in (({"../a.py": "x"}, {}), ({}, {"../a.py": "0" * 64})):
        with pytest.raises(StageError, match="outside its folder"):
            place(tmp_path / "here", texts, digests, str(Path.cwd()))


def test_data_is_named_by_its_place_below_the_copies(tmp_path: Path) -> None:
    folder, here = tmp_path / "tasks", tmp_path
    (folder / "set").mkdir(parents=True)
    for name in ("test.jsonl", "set/a.jsonl", "set/b.jsonl"):
        (folder / name).touch()
    (here / "far.jsonl").touch()
    test = str(folder / "test.jsonl")
    named = {"test": "test.jsonl", "train": ["test.jsonl", "s3://bucket/train.jsonl", "far.jsonl"], "more": "set/*"}
    config = with_local_data({"dataset_path": "json", "dataset_kwargs": {"data_files": named}}, folder, here)
    assert config["dataset_kwargs"]["data_files"] == {
        "test": test,
        "train": [test, "s3://bucket/train.jsonl", str(here / "far.jsonl")],
        "more": [str(folder / "set/a.jsonl"), str(folder / "set/b.jsonl")],
    }
    assert with_local_data({"dataset_path": "set"}, folder, here)["dataset_path"] == str(folder / "set")
    hub = {"dataset_path": "owner/set", "dataset_kwargs": {"data_files": "test.jsonl"}}
    assert with_local_data(hub, folder, here) == hub
    own = with_local_data({"dataset_kwargs": {"file": "test.jsonl", "lang": "en"}}, folder, here)
    assert own["dataset_kwargs"] == {"file": test, "lang": "en"}
