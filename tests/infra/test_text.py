import re

import pytest

from baton.infra.text import (
    brief,
    change,
    clause,
    count,
    duration,
    encodable,
    gigabytes,
    measure,
    number,
    plus_minus,
    points,
    share,
    size,
    value,
)
from tests.source import files


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (number(12345), "12,345"),
        (number(7600.4), "7,600"),
        (number(0.03125), "0.03125"),
        (number(1.2345e-6), "1.234e-06"),
        (number(float("nan")), "nan"),
        (number(float("inf")), "inf"),
        (share(0.7841), "78.4 %"),
        (points(0.2931), "+29.3 points"),
        (points(-0.05), "−5.0 points"),
        (points(0.00012), "+0.012 points"),
        (share(0.0002), "0.02 %"),
        (measure(0.4851, ""), "0.485"),
        (measure(0.0004, ""), "0.0004"),
        (measure(0.000412, "bits per byte"), "0.000412"),
        (measure(0.0, "bits per byte"), "0.000"),
        (change(1.2e-5, ""), "+1.2e-05"),
        (change(-0.0123, ""), "−0.012"),
        (change(0.1 + 0.2 - 0.3, ""), "+0.000"),
        (plus_minus("+1.2e-05", 3.4e-6, ""), "+1.2e-05 ± 3.4e-06"),
        (plus_minus("57.3 %", 0.01, "share"), "57.3 % ± 1.0"),
        (size(999), "999 B"),
        (size(10_512_332), "10.5 MB"),
        (size(3e15), "3,000.0 TB"),
        (size(999_940), "999.9 kB"),
        (size(999_960), "1.0 MB"),
        (size(999_999_999_999), "1.0 TB"),
        (count(999_949_999), "999.9 M"),
        (count(999_999_999), "1.0 B"),
        (count(999_999.7), "1.0 M"),
        (count(30.53e9), "30.5 B"),
        (count(999_960_000_000), "1.0 T"),
        (count(2.5e15), "2,500.0 T"),
        (gigabytes(23_100_000), "0.0231 GB"),
        (gigabytes(1.234e12), "1,234 GB"),
        (count(5_769_472), "5.8 M"),
        (count(512), "512"),
        (duration(0.04), "0.0 s"),
        (duration(59.96), "1 min 00 s"),
        (duration(214.8), "3 min 35 s"),
        (duration(7800), "2 h 10 min"),
        (brief(99.4), "99 s"),
        (brief(300), "5 min"),
        (brief(7560), "2.1 h"),
        (brief(99.7), "2 min"),
        (brief(3599), "1.0 h"),
        (brief(86_390), "1.0 d"),
        (value({"tensor": 1, "pipeline": 2}), "tensor 1, pipeline 2"),
        (value(True), "True"),
        (value(None), "None"),
        (encodable("a\ud800b"), "a?b"),
    ],
)
def test_numbers_are_written_for_people(written: str, expected: str) -> None:
    assert written == expected


@pytest.mark.parametrize("text", ["It does not exist.", "It does not exist. \n", "It does not exist"])
def test_an_error_s_own_full_stop_is_not_doubled(text: str) -> None:
    assert f"{clause(OSError(text))}. Create it" == "It does not exist. Create it"


def test_no_message_goes_on_after_an_error_as_it_is() -> None:
    """A quoted message may end in a period of its own."""
    doubled = re.compile(r"\{(error|str\(error\)|redact_text\([^{}]*\)[^{}]*)\}[.;] ")
    assert [path for path in files("infra", "tasks", "workflows", "images") if doubled.search(path.read_text())] == []
