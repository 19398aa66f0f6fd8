"""Names of the installed lm-eval's tasks."""

from tasks.evaluate.task_names import all_tasks, unknown


def test_a_name_that_has_a_file_is_known_without_asking_lm_eval() -> None:
    asked = all_tasks.cache_info().misses
    assert unknown(["gsm8k", "hellaswag", "mmlu"]) == {}
    assert all_tasks.cache_info().misses == asked


def test_other_names_are_looked_up_in_lm_eval() -> None:
    """A tag, and a misspelled name."""
    found = unknown(["ai2_arc", "gms8k"])
    assert [*found] == ["gms8k"] and "gsm8k" in found["gms8k"]
