"""The corpora of a DAG, and the rows that they must not contain."""

from tasks.artifacts import Corpus, Rows
from tasks.data.curate_spec import against_evaluation
from tasks.data.spec import CorpusSpec
from tasks.data.task import prepare_clean_corpus, prepare_corpus
from workflows.recipe import Recipe
from workflows.tuning import prepared


def evaluated_names(recipe: Recipe) -> list[str]:
    """The evaluated sets of rows, if a corpus is decontaminated against them."""
    corpora = [recipe.corpus, *recipe.more_corpora]
    needed = any(corpus and against_evaluation(corpus.curate) for corpus in corpora)
    return recipe.evaluate.sets() if recipe.evaluate and needed else []


def evaluated_first(recipe: Recipe) -> dict[str, Rows]:
    """These sets, prepared before the corpora."""
    return prepared(recipe, None, evaluated_names(recipe))


def corpus_of(spec: CorpusSpec, evaluated: dict[str, Rows]) -> Corpus:
    """A corpus; without the evaluated rows if its curation says so."""
    if against_evaluation(spec.curate):
        return prepare_clean_corpus(spec=spec.as_found(), against=list(evaluated.values()))
    return prepare_corpus(spec=spec.as_found())
