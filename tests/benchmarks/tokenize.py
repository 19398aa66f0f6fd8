"""`python -m tests.benchmarks.tokenize [--megabytes N] [--rounds N]`

The shards engine's writer against `tokenizers.Tokenizer.encode_batch` on the same text and the same
cores. encode_batch starts with the text in memory and ends with Python objects, and writes nothing.
The writer starts with the corpus in Parquet and ends with `.bin/.idx` on disk; it is timed twice:
with its workers running (`writer_over_encode_batch`, the figure for a corpus of any size) and with
their start (`with_start_over_encode_batch`, which depends on how large the text is).
"""

import argparse
import os
import tempfile
from itertools import cycle, islice
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "true"  # encode_batch: on all cores

from tokenizers import Tokenizer

from tasks.data.documents import SplitWriter, document, read_documents, row_groups
from tasks.data.encode import encode_in_order, worker_pool
from tasks.data.indexed_dataset import token_dtype, write_index
from tasks.data.shards import Shard, Written
from tasks.data.source_spec import StdlibSource
from tasks.data.tokenizer import wrapped
from tests.benchmarks.harness import median_ratio, report, side_by_side
