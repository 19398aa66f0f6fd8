"""Record the data that each rank reads under several layouts: `torchrun … -m tests.pretrain.order FOLDER DATA MORE`.

FOLDER/order.json contains, for each layout and step, each rank's data parallel rank and its micro batches as lists
of sequences.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from baton.tasks.pretrain.batches import build_datasets, micro_batches
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.process import model_parallel
from tests.pretrain.tiny import VOCABULARY, tiny_spec

# layouts of four processes
LAYOUTS = [
    Layout(processes=4, tensor=4, micro_batch=12),  # 1 data parallel rank
    Layout(processes=4, tensor=4, micro_batch=3),
    Layout(processes=4, pipeline=2, micro_batch=2),  # 2
    Layout(processes=4, tensor=2, micro_batch=6),
    Layout(processes=4, micro_batch=1),  # 4
    Layout(processes=4, micro_batch=3),
]
STEPS, BATCH = 4, 12


def main(folder: Path, *data: Path) -> None:
    dist.init_process_group("gloo")
    spec = tiny_spec(steps=STEPS, global_batch=BATCH)
    found: dict[str, list[Any]] = {}
    for number, layout in enumerate(LAYOUTS):
        with model_parallel(layout, spec.seed):
            dataset, _ = build_datasets(spec, list(data), VOCABULARY, folder / "index")
            mine = [
                [
                    batch.tokens.tolist()
                    for batch in micro_batches(dataset, spec.samples_at(step), BATCH, layout.micro_batch)
                ]
                for step in range(STEPS)
            ]
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, mine)
            found[str(number)] = everyone
    if dist.get_rank() == 0:
        (folder / "order.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
