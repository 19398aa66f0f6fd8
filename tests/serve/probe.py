"""Open the engine with one model, sample, load another model's weights and sample again; compare the first samples
with the results of Transformers, and print JSON. This runs in a separate process, since vLLM binds the threads of
its process to cores.

python -m tests.serve.probe MODEL OTHER_MODEL
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from transformers import AutoTokenizer

from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import RECORD
from baton.tasks.models.agreement import probe
from baton.tasks.models.model_files import load_causal_lm
from baton.tasks.vllm.engine import check_engine, open_engine, sample
from baton.tasks.vllm.hooks import reload_weights

PROMPTS = [list(range(10 + 3 * i, 30 + 4 * i)) for i in range(12)]
MAX_TOKENS, TEMPERATURE = 24, 0.8


def main(model: Path, other: Path) -> None:
    llm = open_engine(model, max_model_len=128, seed=3, max_num_seqs=16)
    greedy = sample(llm, PROMPTS, temperature=0.0, max_tokens=MAX_TOKENS)
    drawn = sample(llm, PROMPTS[:2], temperature=TEMPERATURE, max_tokens=MAX_TOKENS, n=8)
    reload_weights(llm, weights_path=str(other))
    replaced = sample(llm, PROMPTS, temperature=0.0, max_tokens=MAX_TOKENS)
    found = {"greedy": greedy, "drawn": drawn, "replaced": replaced}
    completions = {name: [asdict(each) for each in completions] for name, completions in found.items()}
    for folder in (model, other):
        (folder / RECORD).mkdir()
        probe(load_causal_lm(folder), AutoTokenizer.from_pretrained(folder)).write(folder / RECORD)
    check_engine(llm, other)
    try:
        check_engine(llm, model)
        raise AssertionError("the engine has other weights")
    except StageError as error:
        print(json.dumps(completions | {"another": str(error)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
