"""The recipe: the typed YAML that describes a run, composed of the stages' specs.

A stage that is left out (or `null`) is off. `start_from` enters midway with an existing model.
Recipes are data: validating one opens no file, uses no network and imports no user's code. Checks that look something
up are in workflows/checks/.
"""

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, create_model, model_validator

from baton.tasks.convert.load_hf_spec import LoadHFSpec, StartFromSpec
from baton.tasks.convert.spec import AuditSpec, ConvertSpec
from baton.tasks.core.packages import modules
from baton.tasks.core.spec import Problem, Spec, StageSpec
from baton.tasks.custom.spec import CustomSpec
from baton.tasks.data.json_values import SURROGATE
from baton.tasks.data.spec import CorpusSpec, ShardsSpec, TokenizerSpec
from baton.tasks.evaluate.spec import EvaluateSpec
from baton.tasks.pretrain.mixture import SourceShare
from baton.tasks.pretrain.spec import PretrainSpec
from baton.tasks.publish.spec import PublishSpec
from baton.tasks.rows.spec import RowsSpec
from baton.tasks.serve.spec import ServeSpec
from baton.workflows.checks.run_context import RunContext
from baton.workflows.dag.post_training import Tuning
from baton.workflows.recipe.error import RecipeError, locate, models_in, problems_from

S = TypeVar("S", bound=StageSpec)

NAME = r"^[A-Za-z_][A-Za-z0-9_-]{0,62}$"


def _sections() -> dict[str, Any]:
    """The sections that specs declare: those in `spec.py` of each package of tasks/."""
    found = [value for module in modules("spec") for value in vars(module).values() if isinstance(value, type)]
    return {
        spec.section: (spec | None, Field(None, description=str(spec.__doc__).partition(".")[0]))
        for spec in found
        if issubclass(spec, StageSpec) and spec.section
    }


if TYPE_CHECKING:

    class _Sections(Spec): ...
else:
    _Sections = create_model("_Sections", __base__=Spec, **_sections())


class TrackingSpec(Spec):
    """Trackers that get the records of a run. In no cache key: no stage reads it."""

    also: list[Literal["wandb", "trackio", "tensorboard"]] = Field(
        [], max_length=3, description="Trackers beside MLflow, which get the same records: wandb, trackio, tensorboard"
    )

    def problems(self) -> list[Problem]:
        twice = {name for name in self.also if self.also.count(name) > 1}
        return [Problem("also", self.also, f"each tracker once, and not {', '.join(sorted(twice))} twice")] * bool(
            twice
        )


class Recipe(_Sections):
    """One run from raw text to a published model."""

    name: str = Field("baton", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$", description="Name of the run: a-z, 0-9 and -")
    corpus: CorpusSpec | None = Field(None, description="Where the text comes from")
    more_corpora: list[CorpusSpec] = Field(
        [], max_length=1000, description="More data sets to pretrain on, with the corpus's tokenizer; see data_weights"
    )
    start_from: StartFromSpec | None = Field(None, description="Existing model to start from, in place of pretraining")
    tokenizer: TokenizerSpec | None = Field(None, description="Tokenizer; needed by shards")
    shards: ShardsSpec | None = Field(None, description="Tokenized shards; needed by pretrain")
    init_from: LoadHFSpec | None = Field(None, description="Existing model whose weights pretraining starts from")
    pretrain: PretrainSpec | None = Field(None, description="Pretraining with Megatron-Core")
    convert: ConvertSpec | None = Field(None, description="Export to Hugging Face; needed by all later stages")
    audit: AuditSpec | None = Field(AuditSpec(), description="Audit of the conversion; null: off")
    evaluate: EvaluateSpec | None = Field(None, description="Evaluation with vLLM, of every model of the run")
    data: dict[Annotated[str, Field(pattern=NAME)], RowsSpec] = Field(
        {}, description="Sets of rows by name: for post-training and, with their held-out rows, for evaluation"
    )
    post_training: list[Tuning] = Field(
        [], max_length=100, description="Post-training methods in any order and number; each model is evaluated"
    )
    seeds: int = Field(
        1,
        ge=1,
        le=100,
        description="Repetitions of the post-training with different seeds: reports show each metric's mean and sample "
        "standard deviation over them",
    )
    stages: list[CustomSpec] = Field(
        [],
        max_length=100,
        description="Stages of your own, made from any artifacts of the run; the last model that no post-training "
        "starts from is served and published",
    )
    serve: ServeSpec | None = Field(None, description="Serve the last model with vLLM, query it and measure it")
    publish: PublishSpec | None = Field(None, description="Model card and registry version of the last model")
    tracking: TrackingSpec | None = Field(None, description="Trackers beside MLflow: W&B, trackio, TensorBoard")

    def section(self, kind: type[S]) -> S | None:
        """The section that a spec declares; None: the recipe leaves it out."""
        spec: S | None = getattr(self, kind.section)
        return spec

    def settings(self) -> dict[str, Any]:
        """The fields that differ from their defaults: a shorter recipe that means the same."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def pretraining(self) -> PretrainSpec | None:
        """The spec of the pretraining, with the shares of the corpus's named sources."""
        if not self.pretrain or not self.corpus or not self.corpus.sources:
            return self.pretrain
        shares = {
            name: SourceShare(weight=source.weight, epochs=source.epochs)
            for name, source in self.corpus.sources.items()
        }
        return self.pretrain.model_copy(update={"mixture": shares})

    @model_validator(mode="wrap")
    @classmethod
    def _as_recipe_error(cls, value: Any, handler: ModelWrapValidatorHandler["Recipe"]) -> "Recipe":
        if isinstance(value, Recipe):
            return value
        if unencodable := list(_unencodable(value)):
            raise RecipeError(unencodable)
        try:
            return handler(value)
        except ValidationError as error:
            rest, wrong = _without_errors(cls, value, error)
            try:
                recipe = handler(rest)
            except ValidationError:  # a required field is wrong
                raise RecipeError(problems_from(error, cls, value), None, wrong) from error
            raise RecipeError(problems_from(error, cls, value), recipe, wrong) from error


def _without_errors(model: type[Recipe], value: Any, error: ValidationError) -> tuple[Any, set[str]]:
    """A recipe without the fields that are unknown or have a wrong value, and the sections with a wrong value."""
    rest, wrong = copy.deepcopy(value), set()
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        path, _ = locate(item["loc"], model, value)
        *parents, last = path.split(".")
        holder: Any = rest
        for part in parents:
            if isinstance(holder, list) and part.isdigit() and int(part) < len(holder):
                holder = holder[int(part)]
            else:
                holder = holder.get(part) if isinstance(holder, dict) else None
        if isinstance(holder, dict):
            holder.pop(last, None)
        if item["type"] != "extra_forbidden":
            wrong.add(path.partition(".")[0])
    return rest, wrong


def context_of(recipe: Recipe) -> RunContext:
    """The stages that a recipe turns on."""
    return RunContext({name: section for name, section in recipe if section is not None})


def _unencodable(value: Any, path: str = "") -> Iterator[Problem]:
    """Text that neither JSON nor UTF-8 can represent. Files have none (recipe/text.py), but Python values may."""
    if isinstance(value, str) and SURROGATE.search(value):
        yield Problem(path or "recipe", value, "text without unpaired surrogates")
    elif isinstance(value, dict):
        for name, inner in value.items():
            wrong = list(_unencodable(name, path))
            yield from wrong or _unencodable(inner, f"{path}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _unencodable(inner, f"{path}.{number}".removeprefix("."))


SECTIONS: dict[str, type[Spec]] = {
    name: spec
    for name, field in Recipe.model_fields.items()
    for spec in models_in(field.annotation)
    if issubclass(spec, Spec) and name != "more_corpora"  # it has the spec of `corpus`
}
