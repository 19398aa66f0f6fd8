"""What lm-eval tasks read is in the cache key and travels with the run."""

import os
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from infra.errors import UserError
from infra.storage.address import DIGEST, pack
from tasks.core.job import StageError
from tasks.evaluate.spec import EvaluateSpec, EvaluatorSpec
from tasks.evaluate.task_files import Gathered, gathered, place, with_local_data

LARGE = "x" * 1_500_000


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> Iterator[Path]:
    """A project, the current directory, with a folder of tasks."""
    (tmp_path / "project" / "tasks").mkdir(parents=True)
    with chdir(tmp_path / "project"):
        yield tmp_path / "project"


def write(**files: str) -> None:
    """`tasks__data__a_jsonl="…"` is tasks/data/a.jsonl."""
    for name, text in files.items():
        path = Path(name.replace("__", "/").replace("_", "."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def task(config: str = "") -> str:
    return f"task: mine\ndataset_path: json\n{config}\n"


def found(*tasks: str) -> set[str]:
    of_all = gathered(tasks or ["tasks/mine.yaml"])
    return {str((of_all.root / name).relative_to(Path.cwd())) for name in (*of_all.texts, *of_all.digests)}


@pytest.mark.parametrize(
    ("named", "read"),
    [
        ("data_files: a.jsonl", {"a.jsonl"}),
        ("data_files: [a.jsonl, data/b.jsonl]", {"a.jsonl", "data/b.jsonl"}),
        ("data_files: {test: a.jsonl, train: [data/b.jsonl]}", {"a.jsonl", "data/b.jsonl"}),
        ("data_files: data/*.jsonl", {"data/b.jsonl"}),
        ("data_files: {test: 'data/**/*.jsonl'}", {"data/b.jsonl", "data/deep/c.jsonl"}),
        ("data_files: data", {"data/b.jsonl", "data/deep/c.jsonl", "data/notes.txt"}),
        ("data_dir: data", {"data/b.jsonl", "data/deep/c.jsonl", "data/notes.txt"}),
        ("data_dir: data, data_files: b.jsonl", {"data/b.jsonl", "data/deep/c.jsonl", "data/notes.txt"}),
        ("data_files: a.jsonl, revision: main", {"a.jsonl"}),
        ("data_files: [a.jsonl, 's3://bucket/b.jsonl', 'https://host/c.jsonl']", {"a.jsonl"}),
    ],
)
def test_data_is_found_however_a_task_names_it(named: str, read: set[str]) -> None:
    write(tasks__a_jsonl="1", tasks__data__b_jsonl="2", tasks__data__deep__c_jsonl="3", tasks__data__notes_txt="4")
    write(tasks__data___hidden="5", tasks__mine_yaml=task(f"dataset_kwargs: {{{named}}}"))
    assert found() == {"tasks/mine.yaml", *(f"tasks/{name}" for name in read)}


def test_a_folder_is_a_data_set_and_a_name_of_the_hub_is_none() -> None:
    write(tasks__set__test_jsonl="1", tasks__mine_yaml="task: mine\ndataset_path: set\n")
    assert found() == {"tasks/mine.yaml", "tasks/set/test.jsonl"}
    write(tasks__mine_yaml="task: mine\ndataset_path: owner/set\ndataset_kwargs: {data_files: test.jsonl}\n")
    assert found() == {"tasks/mine.yaml"}


def test_data_may_be_named_from_the_current_directory_as_in_lm_eval() -> None:
    write(data__a_jsonl="1", tasks__mine_yaml=task("dataset_kwargs: {data_files: data/a.jsonl}"))
    assert found() == {"tasks/mine.yaml", "data/a.jsonl"}
    assert gathered(["tasks/mine.yaml"]).root == Path.cwd()


def test_data_beside_the_folder_is_part_of_the_project() -> None:
    write(data__a_jsonl="1", tasks__mine_yaml=task("dataset_kwargs: {data_files: ../data/a.jsonl}"))
    assert found() == {"tasks/mine.yaml", "data/a.jsonl"}


def test_data_is_found_in_what_a_task_merges() -> None:
    write(data__a_jsonl="1", data__b_jsonl="2", c_jsonl="3")
    merged = "metadata: {one: &one {data_files: {test: 'data/*.jsonl'}}, two: &two {data_files: c.jsonl}}\n"
    for kwargs in ("*one", "{<<: *one}", "{<<: [*one, *two]}"):
        write(tasks__mine_yaml=f"{merged}task: mine\ndataset_path: json\ndataset_kwargs: {kwargs}\n")
        assert found() >= {"tasks/mine.yaml", "data/a.jsonl", "data/b.jsonl"}
    write(tasks__mine_yaml="task: mine\nx: &x {dataset_path: json, dataset_kwargs: {data_files: 'data/*'}}\n<<: *x\n")
    assert found() == {"tasks/mine.yaml", "data/a.jsonl", "data/b.jsonl"}


@pytest.mark.parametrize(
    "text",
    [
        "metadata: &a [*a, 1]\n",
        "metadata: &a {<<: *a, b: 1}\n",
        "metadata: &a {<<: [*a], b: 1}\n",
        "group: mine\ntask: &a [{group: inner, task: *a}]\n",
        "metadata: {a: &a [x, x], b: &b [*a, *a], c: &c [*b, *b], d: &d [*c, *c]}\n",
    ],
)
def test_a_file_that_repeats_itself_ends(text: str) -> None:
    write(tasks__mine_yaml=text if text.startswith("group") else task() + text)
    assert found() == {"tasks/mine.yaml"}


@pytest.mark.parametrize(
    "text", ["output_type: generate_until\noutput_type: multiple_choice", "metadata: {n: 1, n: 2}"]
)
def test_a_key_that_occurs_twice_is_named(text: str) -> None:
    write(tasks__mine_yaml=task(text))
    with pytest.raises(
        UserError, match=r"mine\.yaml: (output_type|n) occurs twice in one mapping; lm-eval takes the la"
    ):
        gathered(["tasks/mine.yaml"])


def test_a_file_that_is_nested_too_deeply_is_named() -> None:
    write(tasks__mine_yaml=task(f"metadata: {'[' * 3000}{']' * 3000}"))
    with pytest.raises(UserError, match=r"mine\.yaml: cannot read this file of an lm-eval task"):
        gathered(["tasks/mine.yaml"])
    write(tasks__mine_yaml=task("doc_to_text: !function utils.x"), tasks__utils_py=f"x = {'+'.join(['1'] * 5000)}\n")
    with pytest.raises(UserError, match=r"utils\.py: cannot read this file of an lm-eval task"):
        gathered(["tasks/mine.yaml"])


def test_a_file_that_is_not_there_is_named() -> None:
    write(tasks__mine_yaml=task("dataset_kwargs: {data_files: {test: lost.jsonl}}"))
    with pytest.raises(UserError, match=r"mine.yaml: data_files: 'lost.jsonl': no such file"):
        gathered(["tasks/mine.yaml"])
    write(tasks__mine_yaml="include: lost.yaml\n")
    with pytest.raises(UserError, match=r"mine.yaml: include: 'lost.yaml': no such file"):
        gathered(["tasks/mine.yaml"])


@pytest.mark.parametrize("named", ["../../secret.jsonl", "{outside}", ".hidden.jsonl", "../.env"])
@pytest.mark.parametrize("how", ["data", "include", "function"])
def test_what_is_outside_or_hidden_is_refused(project: Path, named: str, how: str) -> None:
    outside = project.parent / "secret.jsonl"
    outside.write_text("a: 1")
    write(tasks___hidden_jsonl="a: 1", _env="a: 1")
    name = named.format(outside=outside)
    lines = {
        "data": task(f"dataset_kwargs: {{data_files: {name}}}"),
        "include": f"include: {name}\ntask: mine\n",
        "function": task("doc_to_text: !function utils.text"),
    }
    write(tasks__mine_yaml=lines[how], tasks__utils_py=f"DATA = open({name!r}).read()\n")
    with pytest.raises(UserError, match=rf"tasks/(mine.yaml|utils.py): .*{Path(name).name}"):
        gathered(["tasks/mine.yaml"])


def test_a_link_to_data_elsewhere_is_the_users_own(project: Path) -> None:
    elsewhere = project.parent / "disk"
    elsewhere.mkdir()
    (elsewhere / "a.jsonl").write_text("1")
    Path("tasks/data").symlink_to(elsewhere)
    write(tasks__mine_yaml=task("dataset_kwargs: {data_dir: data}"))
    assert found() == {"tasks/mine.yaml", "tasks/data/a.jsonl"}


# Python


def test_modules_that_a_function_s_file_imports_are_found() -> None:
    write(
        tasks__mine_yaml=task("doc_to_text: !function utils.text\nprocess_docs: !function lib.clean.docs"),
        tasks__utils_py="import json\nfrom cleaning import clean\n",
        tasks__cleaning_py="import shared.words\n",
        shared__words_py="",
        tasks__lib__clean_py="def docs(all):\n    from trim import trim\n    return all\n",
        tasks__lib__trim_py="",
        tasks__unused_py="",
    )
    modules = {"utils.py", "cleaning.py", "lib/clean.py", "lib/trim.py"}
    assert found() == {"tasks/mine.yaml", "shared/words.py", *(f"tasks/{name}" for name in modules)}


@pytest.mark.parametrize(
    "name",
    [
        "f'{language}.txt'",
        "HERE / f'{language}.txt'",
        "'en' + '.txt'",
        "os.path.join(HERE, language + '.txt')",
        "'%s.txt' % language",
        "'{}.txt'.format(language)",
        "'{language}.txt'.format(language=language)",
        "sorted(glob.glob('*.txt'))[0]",
        "sorted(HERE.glob('e*.txt'))[0]",
    ],
)
def test_files_whose_names_python_puts_together_are_found(name: str) -> None:
    write(
        tasks__mine_yaml=task("doc_to_text: !function utils.text"),
        tasks__utils_py=(
            f"import glob, os\nfrom pathlib import Path\nHERE, language = Path(__file__).parent, 'en'\n"
            f"def text(doc):\n    return open({name}).read() + f'{{language}}? %s: {{doc}}.' + r'[a-z]*\\.txt'\n"
        ),
        tasks__en_txt="a",
        tasks__notes_md="b",
        tasks___hidden_txt="c",
        other_txt="d",
    )
    assert found() == {"tasks/mine.yaml", "tasks/utils.py", "tasks/en.txt"}


def test_neither_all_that_is_beside_a_task_nor_baton_s_home_is_taken(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of a run change while it runs."""
    monkeypatch.setenv("BATON_HOME", str(project / "tasks" / "runs"))
    write(
        tasks__mine_yaml=task("doc_to_text: !function utils.x\ndataset_kwargs: {data_dir: ., data_files: a.jsonl}"),
        tasks__utils_py="x = ['no such/..', 'tasks/..', '../tasks', 'runs']\n",
        tasks__a_jsonl="1",
        tasks__runs__jobs__log_txt="2",
        other__b_txt="3",
    )
    assert found() == {"tasks/mine.yaml", "tasks/utils.py", "tasks/a.jsonl"}


def test_files_that_strings_of_python_name_are_found() -> None:
    write(
        tasks__mine_yaml=task("custom_dataset: !function utils.data"),
        tasks__utils_py=(
            "from pathlib import Path\nHERE = Path(__file__).parent\n"
            "def data(**kwargs):\n"
            "    open('labels.json'), open(HERE / 'words' / f'{kwargs}.txt'), open('data/far.json')\n"
            "    return kwargs['far'], 'test', '/dev/null', '/usr/bin/env'\n"
        ),
        tasks__labels_json="{}",
        tasks__words__en_txt="a",
        data__far_json="{}",
        far__not_this_json="{}",
    )
    files = {"mine.yaml", "utils.py", "labels.json", "words/en.txt"}
    assert found() == {"data/far.json", *(f"tasks/{name}" for name in files)}


# Groups and includes


def test_members_of_a_group_are_found_beside_it_and_below() -> None:
    write(
        tasks__all_yaml="group: all\ntask: [a, {task: b, num_fewshot: 1}, {group: inner, task: [tagged]}, arc_easy]\n",
        tasks__a_yaml="task: a\ndataset_path: json\ndataset_kwargs: {data_files: a.jsonl}\n",
        tasks__deep__b_yaml="include: ../base_file\ntask: b\n",
        tasks__base_file="dataset_path: json\ndataset_kwargs: {data_files: b.jsonl}\n",
        tasks__c_yaml="task: c\ntag: [tagged]\n",
        tasks__other_yaml="task: other\n",
        tasks__a_jsonl="1",
        tasks__b_jsonl="2",
    )
    Path("tasks/base.file").rename("tasks/base_file")
    names = {"all.yaml", "a.yaml", "deep/b.yaml", "base_file", "c.yaml", "a.jsonl", "b.jsonl"}
    assert found("tasks/all.yaml") == {f"tasks/{name}" for name in names}


@pytest.mark.parametrize("text", ["task: [", "task: mine\x00", "task: !function utils.f\n\t- a"])
def test_a_file_that_is_no_yaml_is_named(text: str) -> None:
    write(tasks__mine_yaml=text)
    with pytest.raises(UserError, match=r"mine.yaml: cannot read this file of an lm-eval task"):
        gathered(["tasks/mine.yaml"])


# The cache key


def key(task: str = "tasks/mine.yaml") -> dict[str, Any]:
    return EvaluateSpec.model_validate({"mine": {"lm_eval": [task]}}).pinned().identity()


@pytest.mark.parametrize("size", [10, 1_500_000])
def test_changed_data_is_another_evaluation_and_moved_data_the_same(project: Path, size: int) -> None:
    write(tasks__mine_yaml=task("dataset_kwargs: {data_files: a.jsonl}"), tasks__a_jsonl="a" * size)
    before, about = key(), Path("tasks/a.jsonl").stat()
    write(tasks__a_jsonl="b" * size)
    os.utime("tasks/a.jsonl", ns=(about.st_atime_ns, about.st_mtime_ns))  # as rsync -t and tar leave it
    assert key() != before
    write(tasks__a_jsonl="a" * size)
    assert key() == before
    Path("tasks").rename("moved")
    assert key("moved/mine.yaml") == before


def test_sources_and_small_texts_are_in_the_spec_and_the_rest_by_digest() -> None:
    write(tasks__mine_yaml=task("dataset_kwargs: {data_dir: data}"), tasks__data__a_jsonl="é\r\n")
    write(tasks__data__large_jsonl=LARGE)
    Path("tasks/data/b.parquet").write_bytes(b"PAR1\xff")
    of_all = gathered(["tasks/mine.yaml"])
    assert of_all.texts.keys() == {"mine.yaml", "data/a.jsonl"} and of_all.texts["data/a.jsonl"] == "é\r\n"
    assert of_all.digests.keys() == {"data/large.jsonl", "data/b.parquet"}


def test_sources_that_are_too_large_for_a_spec_are_refused_with_a_way_out() -> None:
    write(tasks__mine_yaml=task("doc_to_text: !function utils.text"), tasks__utils_py=f"TEXT = '{LARGE}'\n")
    with pytest.raises(
        UserError, match=r"have 1.5 MB, of at most 1 MB: import less, or install their code as a package"
    ):
        gathered(["tasks/mine.yaml"])


# Where it runs


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
