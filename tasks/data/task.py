"""The data stages as Flyte tasks: source → corpus → tokenizer → tokenized shards; and, for a source that changes, new
documents, merged corpora and merged shards."""

from collections.abc import Sequence

from baton import images
from baton.infra.process.launch import Engine, Launch
from baton.infra.process.torchrun_env import placed_nodes
from baton.tasks.core.manifest import ALL, MANIFEST, json_key
from baton.tasks.data.artifact import Corpus, StoredPartitions, TokenizedCorpus, Tokenizer
from baton.tasks.data.source_changes import GONE, GONE_COUNTS
from baton.tasks.data.spec import CorpusSpec, GatherSpec, ReadShareSpec, ShardsSpec, ShareSpec, TokenizerSpec
from baton.tasks.rows.artifact import Rows
from baton.tasks.run import run
from baton.tasks.stage import stage
from baton.tasks.stage_job import Reads

READ = Engine("read_partitions", "baton.tasks.data.read_partitions", version="4")
CORPUS = Engine("corpus", "baton.tasks.data.corpus", version="4")
TOKENIZER = Engine("tokenizer", "baton.tasks.data.tokenizer", version="3")
ENCODE = Engine("encode_partitions", "baton.tasks.data.encode_partitions", version="5")
SHARDS = Engine("shards", "baton.tasks.data.shards", version="5")
INCREMENT = Engine("increment", "baton.tasks.data.increment", version="7")
GATHER = Engine("gather", "baton.tasks.data.gather", version="1")
COMPACT = Engine("compact", "baton.tasks.data.compact", version="2")

AGAINST = {"against": (*Rows.held_out_files, MANIFEST)}  # the manifest has the name of their source, for reports
ON_DEMAND = Reads(on_demand="corpus")
LOST = {"newest": [GONE, GONE_COUNTS]}


@stage(READ, image=images.DATA)
def read_partitions(spec: ReadShareSpec, against: list[Rows]) -> StoredPartitions:
    """Read and curate a share of a corpus' partitions, for the corpus stage in another pod."""
    return run(READ, StoredPartitions, spec, reads=Reads(files=AGAINST), against=against)


@stage(CORPUS, image=images.DATA)
def prepare_corpus(spec: CorpusSpec) -> Corpus:
    """Read a source, drop duplicates, and split it by content."""
    return run(CORPUS, Corpus, spec, launch=Launch(nodes=placed_nodes(spec.partitions.machines)))


@stage(CORPUS, image=images.DATA)
def prepare_clean_corpus(spec: CorpusSpec, against: list[Rows]) -> Corpus:
    """Prepare a corpus without the documents that contain a held-out row of some sets, by a step of its curation."""
    launch = Launch(nodes=placed_nodes(spec.partitions.machines))
    return run(CORPUS, Corpus, spec, launch=launch, reads=Reads(files=AGAINST), against=against)


@stage(TOKENIZER, image=images.DATA)
def train_tokenizer(spec: TokenizerSpec, corpus: Corpus) -> Tokenizer:
    """Train a byte-level BPE on the train split, or copy an existing tokenizer."""
    return run(TOKENIZER, Tokenizer, spec, corpus=corpus)


@stage(ENCODE, image=images.DATA)
def encode_partitions(spec: ShareSpec, corpus: Corpus, tokenizer: Tokenizer) -> StoredPartitions:
    """Tokenize a share of a corpus' files, for the shards stage in another pod."""
    return run(ENCODE, StoredPartitions, spec, reads=ON_DEMAND, corpus=corpus, tokenizer=tokenizer)


@stage(SHARDS, image=images.DATA)
def tokenize(spec: ShardsSpec, corpus: Corpus, tokenizer: Tokenizer) -> TokenizedCorpus:
    """Write both splits as Megatron `.bin/.idx`."""
    launch = Launch(nodes=placed_nodes(spec.machines))
    return run(SHARDS, TokenizedCorpus, spec, launch=launch, reads=ON_DEMAND, corpus=corpus, tokenizer=tokenizer)


@stage(INCREMENT, image=images.DATA)
def find_new(spec: CorpusSpec, known: list[Corpus], against: list[Rows]) -> Corpus:
    """The sources' documents that are in none of the known corpora (oldest first), possibly none; `changes.json` lists
    the changes to the others. `against`: rows that no document may contain, as for `prepare_clean_corpus`."""
    launch = Launch(nodes=placed_nodes(spec.partitions.machines))
    files = AGAINST | {f"known.{len(known) - 1}": (*ALL, Corpus.partitions_file)}
    reads = Reads(files, on_demand="known", implied=ancestors_of_last(known))
    return run(INCREMENT, Corpus, spec, launch=launch, reads=reads, known=known, against=against)


def ancestors_of_last(known: Sequence[Corpus]) -> list[str]:
    """The names of the inputs that the last known corpus was compared with: all others, in continuous training."""
    others = known[:-1]
    covered = known and known[-1].known_digest == json_key([corpus.digest for corpus in others])
    return [f"known.{number}" for number in range(len(others))] if covered else []


@stage(GATHER, image=images.DATA)
def gather(spec: GatherSpec, corpora: list[Corpus], newest: Corpus) -> Corpus:
    """Merge some corpora, in order, without the documents that the source no longer had at the increment `newest`."""
    files = LOST | ({} if spec.train else {"corpora": Corpus.held_out_files})
    return run(GATHER, Corpus, spec, reads=Reads(files), corpora=corpora, newest=newest)


@stage(COMPACT, image=images.DATA)
def compact(
    spec: ShardsSpec, data: list[TokenizedCorpus], corpora: list[Corpus], newest: list[Corpus]
) -> TokenizedCorpus:
    """Make one data set from the shards of several corpora, in order, without the documents of `corpora` that the
    source no longer had at the increment `newest`; both are empty if it still has all."""
    # the manifests of the shards name the corpora that they were tokenized from
    files = LOST | {"corpora": Corpus.held_out_files, "data": (*ALL, MANIFEST)}
    return run(COMPACT, TokenizedCorpus, spec, reads=Reads(files), data=data, corpora=corpora, newest=newest)
