"""Print the number of tokens that vLLM generates with models that prefer one token to all others: `python -m
tests.publish.stops TOKEN MOST DIRECTORY…`. Adapters need the bases that they were trained on.

It runs in a separate process, as in tests/serve/probe.py.
"""

import json
import sys
from pathlib import Path

from baton.tasks.models.adapter_base import open_model
from baton.tasks.vllm.engine import open_engine, sample


def main() -> None:
    token, most, *directories = sys.argv[1:]
    counts = []
    for directory in map(Path, directories):
        model = open_model(directory)
        base = None if model.weights == directory else model.weights
        llm = open_engine(directory, base=base, max_model_len=64, seed=0, max_num_seqs=2)
        (one,) = sample(llm, [[5, 6]], temperature=0.0, max_tokens=int(most), logit_bias={int(token): 100.0})
        assert {*one.token_ids} == {int(token)}
        counts.append(len(one.token_ids))
        del llm
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
