"""Make two sets of rows as separate tasks under Flyte's local execution: python -m tests.rows.two_sets SPEC SPEC"""

import json
import sys

from flytekit import workflow

from baton.tasks.rows.artifact import Rows
from baton.tasks.rows.spec import DecontaminateSpec, RowsSpec
from baton.tasks.rows.task import decontaminate, prepare_rows


@workflow
def two_sets(one: RowsSpec, two: RowsSpec) -> Rows:
    first, second = prepare_rows(spec=one, corpora=[]), prepare_rows(spec=two, corpora=[])
    return decontaminate(spec=DecontaminateSpec(), rows=second, against=[first])


if __name__ == "__main__":
    one, two = (RowsSpec.model_validate_json(word).pinned() for word in sys.argv[1:])
    made = two_sets(one=one, two=two)
    print(json.dumps(made.facts() | {"place": made.place}))
