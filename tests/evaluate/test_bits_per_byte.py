"""The text on which bits per byte are measured, in which every token counts once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.data.documents import Document, document
from baton.tasks.evaluate.bits_per_byte import bits_per_byte, held_out_texts, windows


@given(st.lists(st.integers(1, 99), max_size=60), st.sampled_from([[0], [-1, 0]]), st.integers(3, 20))
def test_windows_predict_every_token_once_after_the_one_before_it(
    tokens: list[int], start: list[int], length: int
) -> None:
    runs = list(windows(tokens, start, length))
    assert [token for run in runs for token in run.tokens[run.context :]] == tokens
    stream = [*start, *tokens]
    begins = [0, *range(length - 1, len(stream) - 1, length - 1)][: len(runs)]
    assert [run.tokens for run in runs] == [stream[begin : begin + length] for begin in begins]
    assert [run.context for run in runs] == [len(start), *[1] * len(runs)][: len(runs)]


def test_texts_are_whole_documents_in_the_order_of_their_ids_up_to_the_budget() -> None:
    documents = [document(str(i), f"{i}" * 10) for i in range(10)]
    by_id = [each.text for each in sorted(documents, key=lambda each: each.id)]
    assert texts(documents, 25) == [by_id[0], by_id[1], by_id[2][:5]]
    assert texts(documents[::-1], 30) == by_id[:3]
    assert texts(documents, 10**6) == by_id


def test_a_text_is_cut_at_a_whole_character() -> None:
    assert texts([document("é", "éé")], 3) == ["é"]


def test_a_document_whose_first_character_does_not_fit_is_not_counted() -> None:
    documents = [document(str(i), "漢字") for i in range(3)]
    assert texts(documents, 8) == ["漢字"]


def texts(documents: list[Document], budget: int) -> list[str]:
    return [each.text for each in held_out_texts(documents, budget)]


def test_bits_per_byte_are_all_bits_over_all_bytes_and_less_is_better() -> None:
    found = bits_per_byte([(30.0, 10), (10.0, 10)])
    assert (found.value, found.count, found.unit, found.higher_is_better) == (2.0, 2, "bits per byte", False)
    assert found.standard_error == pytest.approx(1.0)  # documents of the same size: the standard error of a mean
    assert bits_per_byte([(30.0, 10)]).standard_error is None
