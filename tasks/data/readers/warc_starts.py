"""Find where a WARC or WET file can be cut: between records, and in a `.gz` where a member begins with a record.

The file is read from its beginning by the parser that reads its documents, so that a record within the content of
another one does not count as a record of the file.
"""

import io
from collections.abc import Iterator
from typing import IO, cast

from baton.infra.storage.address import File
from baton.tasks.data.readers.warc import DAMAGED
from baton.tasks.data.readers.warc_records import Members, Records, Truncated
from baton.tasks.data.rounds import Amount, Report


def piece_starts(item: File, target: int, report: Report) -> list[int]:
    """The offsets in the file at which its pieces of about `target` bytes begin: only 0 if it cannot be cut; empty if
    it is damaged."""
    starts = [0]
    try:
        with item.open() as file:
            for number, start in enumerate(_record_starts(file, item.name.endswith(".gz")), 1):
                if start - starts[-1] >= target:
                    starts.append(start)
                report(file.tell() / item.size, Amount(number, 0))
    except DAMAGED:
        return []
    return starts


def _record_starts(file: IO[bytes], compressed: bool) -> Iterator[int]:
    """The offsets of the records at which reading can start. Raises those of DAMAGED."""
    members, continues = Members(file) if compressed else None, True
    while continues:
        stream = io.BufferedReader(members) if members else file
        records = Records(stream)
        while record := records.next():
            start = members.start_at(record.start) if members else record.start
            if start is not None:
                yield start
            if wrong := records.finish(record):
                raise Truncated(wrong)
        if members:
            cast(io.BufferedReader, stream).detach()
            if members.damage:
                raise Truncated(str(members.damage))
        continues = members is not None and members.advance()
