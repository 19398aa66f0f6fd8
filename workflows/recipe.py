"""The recipe: the one typed YAML that describes a run, made of the stages' specs.

A stage that is left out (or `null`) is off. `start_from` enters midway with an existing model.
Whatever is wrong with a recipe is found before any compute, all of it at once: RecipeError.
"""

from typing import Annotated, Any

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from tasks.convert.adopt_spec import AdoptSpec
from tasks.convert.audit_spec import AuditSpec
from tasks.convert.spec import ConvertSpec
from tasks.data.spec import CorpusSpec, ShardsSpec, TokenizerSpec
from tasks.evaluate.spec import EvaluateSpec
from tasks.pretrain.spec import PretrainSpec
from tasks.publish.spec import PublishSpec
from tasks.rows.spec import RowsSpec
from tasks.serve.spec import ServeSpec
from tasks.spec import Problem, Spec
from workflows.given import Given
from workflows.post_training import Tuning
from workflows.preflight import problems_of
from workflows.recipe_error import RecipeError, problems_from
from workflows.repair import repaired

NAME = r"^[A-Za-z_][A-Za-z0-9_-]{0,62}$"


class Recipe(Spec):
    """One run from raw text to a published model."""

    name: str = Field("baton", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$", description="Name of the run: a-z, 0-9 and -")
    corpus: CorpusSpec | None = Field(
        None, description="Where the text comes from. more_corpora: a list of more such, blended in pretraining"
    )
    more_corpora: list[CorpusSpec] = Field(
        [], max_length=1000, description="More data sets to pretrain on, with the corpus's tokenizer; see data_weights"
    )
    start_from: AdoptSpec | None = Field(None, description="Existing model to start from, in place of pretraining")
    tokenizer: TokenizerSpec | None = Field(None, description="Tokenizer; needed by shards")
    shards: ShardsSpec | None = Field(None, description="Tokenized shards; needed by pretrain")
    init_from: AdoptSpec | None = Field(None, description="Existing model whose weights pretraining starts from")
    pretrain: PretrainSpec | None = Field(None, description="Pretraining with Megatron-Core")
    convert: ConvertSpec | None = Field(None, description="Export to Hugging Face; needed by all that follow")
    audit: AuditSpec | None = Field(AuditSpec(), description="Proof of the conversion, if there is one; null: none")
    evaluate: EvaluateSpec | None = Field(None, description="Evaluation with vLLM, of every model of the run")
    data: dict[Annotated[str, Field(pattern=NAME)], RowsSpec] = Field(
        {}, description="Sets of rows by name: for post-training, and (their held-out rows) for evaluation"
    )
    post_training: list[Tuning] = Field(
        [], max_length=100, description="SFT, DPO and GRPO in any order and number; each model is evaluated"
    )
    seeds: int = Field(
        1,
        ge=1,
        le=100,
        description="Repetitions of the post-training, with other seeds: reports show the mean of each metric over "
        "them and its sample standard deviation",
    )
    serve: ServeSpec | None = Field(None, description="The last model served with vLLM, asked and measured")
    publish: PublishSpec | None = Field(None, description="Model card and registry version of the last model")

    @model_validator(mode="wrap")
    @classmethod
    def _all_problems_at_once(cls, value: Any, handler: ModelWrapValidatorHandler["Recipe"]) -> "Recipe":
        if isinstance(value, Recipe):
            return value
        try:
            recipe = handler(value)
        except ValidationError as error:
            problems = problems_from(error, cls, value)
            ways = [_problems_with(repaired(value, error, cls, way), handler) for way in (0, 1)]
            raise RecipeError(problems + [each for each in ways[0] if each in ways[1]]) from error
        if problems := _problems_of(recipe):
            raise RecipeError(problems, recipe)
        return recipe


def given_of(recipe: Recipe) -> Given:
    """The stages that a recipe asks for."""
    return Given({name: section for name, section in recipe if section is not None})


def _problems_of(recipe: Recipe) -> list[Problem]:
    return [*recipe.problems(), *problems_of(given_of(recipe))]


def _problems_with(value: Any, handler: ModelWrapValidatorHandler[Recipe]) -> list[Problem]:
    """Of a recipe that was repaired, if that was of use."""
    try:
        found = _problems_of(handler(value))
    except ValidationError:
        return []
    # the way out, after the semicolon, may name another wrong field
    return [Problem(each.path, each.value, each.allowed.partition("; layout: ")[0]) for each in found]


SECTIONS: dict[str, type[Spec]] = {
    "corpus": CorpusSpec,
    "start_from": AdoptSpec,
    "tokenizer": TokenizerSpec,
    "shards": ShardsSpec,
    "init_from": AdoptSpec,
    "pretrain": PretrainSpec,
    "convert": ConvertSpec,
    "audit": AuditSpec,
    "evaluate": EvaluateSpec,
    "data": RowsSpec,
    "post_training": Tuning,
    "serve": ServeSpec,
    "publish": PublishSpec,
}
