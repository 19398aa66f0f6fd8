"""Describe the state of a job that has not ended: what SkyPilot waits for, and why its last launch failed."""

import re
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile

from sky.schemas.api.responses import ManagedJobRecord

from baton.infra.text import clause

STARTING = ("PENDING", "SUBMITTED", "STARTING", "RECOVERING")  # statuses in which SkyPilot looks for machines
BACKOFF = "ALIVE_BACKOFF"  # schedule state between two launches
MOST_REASONS = 3
MOST_CHARACTERS = 160  # limit for a reason

# The beginning of a line in a controller's log: "I 11-30 07:01:02.123 PID=123 recovery_strategy.py:1173] "
_HEAD = re.compile(r"^[DIWEC] \d\d-\d\d (?P<time>\d\d:\d\d:\d\d)\S* PID=\d+ \S+\] ?", re.MULTILINE)
_FAILED = re.compile(r"(?:Failed to launch a cluster with error: |Failure happened before provisioning\. )")
_TRIED = re.compile(r"Provision failures \(tried (\d+) infra\)")
_PLACE = re.compile(r"^\u2717 (.+?) \u2014 .*$", re.MULTILINE)
_RETRY = re.compile(r"Retrying to (?:launch|recover) the cluster in ([\d.]+) seconds")
_ACQUIRE = re.compile(r"Failed to acquire resources(?: \([^)]*\))? .*?for \{.*\}\. *$", re.MULTILINE)  # no reason
_CLOUD_ERROR = re.compile(r"An error occurred \((\w+)\) when calling the \w+ operation(?: \([^)]*\))?: ")
# the end of the first line of a command's failure on a machine, before what the command printed
_OUTPUT = re.compile(r" Error: ===== stdout =====$")
_ERROR = re.compile(r"^\W*(?:\w+ )?error\b", re.IGNORECASE)


@dataclass(frozen=True)
class FailedLaunch:
    """SkyPilot's last launch of a job, which failed."""

    places: int  # number of places that were tried; 0 if unknown
    reasons: tuple[str, ...]
    at: str  # hh:mm:ss of the server's clock
    retry_s: float | None  # time from `at` to the next launch

    def message(self) -> str:
        tried = f"all {self.places} places were tried" if self.places > 1 else "its launch failed"
        retry = f"; next try {self.retry_s:.0f} s after {self.at}" if self.retry_s and self.at else ""
        return f"{tried}: {'; '.join(self.reasons)}{retry}"


def failed_launch(log: str) -> FailedLaunch | None:
    """The last failed launch in a controller's log, if there is one."""
    begins = [found.end() for found in _FAILED.finditer(log)]
    if not begins:
        return None
    before = _HEAD.sub("", log[begins[-2] if len(begins) > 1 else 0 : begins[-1]])
    answers = Counter(
        _reason(line[found.start() :]) for line in before.splitlines() for found in _CLOUD_ERROR.finditer(line)
    )
    often = tuple(answer for answer, _ in answers.most_common())  # a single query before the launch may fail harmlessly
    head = [found["time"] for found in _HEAD.finditer(log[: begins[-1]])][-1:]
    text = _HEAD.sub("", log[begins[-1] :])
    retry = _RETRY.search(text)
    text = text[: retry.start()] if retry else text
    tried = _TRIED.search(text)
    at = head[0] if head else ""
    return FailedLaunch(int(tried[1]) if tried else 0, _reasons(text, often), at, float(retry[1]) if retry else None)


def _reasons(text: str, answers: tuple[str, ...]) -> tuple[str, ...]:
    """Each different reason once, with the first place that it is about. `answers`: the clouds' answers in the log of
    the launch; SkyPilot's own summary may lack them."""
    if answers and _ACQUIRE.search(text) and "Reason: " not in text:
        return answers[:MOST_REASONS]
    _, *parts = _PLACE.split(text)
    places = dict[str, list[str]]()
    for place, why in zip(parts[::2], parts[1::2], strict=True):
        places.setdefault(_reason(why), []).append(place)
    if not places:
        return (_reason(text),)
    shown = [f"{where[0]}{f' and {len(where) - 1} more' * (len(where) > 1)}: {why}" for why, where in places.items()]
    more = len(shown) - MOST_REASONS
    return (*shown[:MOST_REASONS], *([f"{more} other reasons"] if more > 0 else []))


def _reason(text: str) -> str:
    """A cloud's own explanation in the text about one place, in one line."""
    _, has_reason, reason = text.partition("Reason: ")
    lines = [line.strip() for line in (reason if has_reason else text).splitlines() if line.strip()]
    message = clause(_CLOUD_ERROR.sub(r"\1: ", lines[0])) if lines else "no reason is given"
    if _OUTPUT.search(message):
        printed = [
            line for line in takewhile(lambda line: not line.startswith("Traceback"), lines[1:]) if "=====" not in line
        ]
        cause = next(filter(_ERROR.match, reversed(printed)), printed[-1] if printed else "")
        message = clause(f"{_OUTPUT.sub('', message)} {cause}")
    return message if len(message) <= MOST_CHARACTERS else f"{message[:MOST_CHARACTERS]}…"


def waits_for(record: ManagedJobRecord, status: str, failed: FailedLaunch | None) -> str:
    """The state of a job that looks for machines. `status`: its status in words."""
    if record.schedule_state == BACKOFF or "in backoff" in (record.details or ""):
        return f"waits for SkyPilot's next try{f'; {failed.message()}' if failed else ''}"
    if record.schedule_state in ("WAITING", "ALIVE_WAITING"):
        state = "waits for other jobs to launch"
    elif record.status and record.status.value == "PENDING" and record.schedule_state in ("LAUNCHING", "ALIVE"):
        state = "is being started by SkyPilot's controller"
    else:
        state = status
    if failed:
        return f"{state}; {failed.message()}"
    known = clause(" ".join((record.details or "").split()))[:MOST_CHARACTERS]
    return f"{state} ({known})" if known and "WAITING" not in (record.schedule_state or "") else state
