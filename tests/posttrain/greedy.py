"""Print vLLM's greedy completions of models, and its log-probabilities of their prompts: `python -m
tests.posttrain.greedy DIRECTORY…`. Adapters need the bases that they were trained on.

It runs in a separate process, as in tests/serve/probe.py.
"""

import json
import sys
from pathlib import Path

from baton.tasks.models.adapter_base import open_model
from baton.tasks.vllm.engine import open_engine, sample, scores

PROMPTS = [list(range(10 + 3 * row, 30 + 4 * row)) for row in range(8)]


def main() -> None:
    found = []
    for directory in map(Path, sys.argv[1:]):
        model = open_model(directory)
        llm = open_engine(directory, base=model.weights, max_model_len=128, seed=0, max_num_seqs=8)
        completions = [completion.token_ids for completion in sample(llm, PROMPTS, temperature=0.0, max_tokens=16)]
        found.append([completions, [[logprob for logprob, _ in prompt] for prompt in scores(llm, PROMPTS)]])
        del llm
    print(json.dumps(found))


if __name__ == "__main__":
    main()
