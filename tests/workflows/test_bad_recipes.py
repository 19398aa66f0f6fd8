"""Invalid recipes, each with the path of the faulty field. All problems are found before any compute."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from baton.workflows.checks.table import checked
from baton.workflows.plan.command import examined_recipe, main
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.error import RecipeError, shown
from baton.workflows.recipe.text import load
from tests.shipped import shipped
from tests.source import ROOT
from tests.tokenizer_folders import END, PAD, byte_level, folder

Change = Callable[[dict[str, Any]], None]


def put(path: str, value: Any) -> Change:
    """Return a change that sets one field."""

    def change(recipe: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        section: Any = recipe
        for parent in parents:
            section = section[int(parent)] if isinstance(section, list) else section.setdefault(parent, {})
        section[int(last) if isinstance(section, list) else last] = value

    return change


def drop(*names: str) -> Change:
    """Return a change that removes sections."""

    def change(recipe: dict[str, Any]) -> None:
        for name in names:
            del recipe[name]

    return change


def both(one: Change, other: Change) -> Change:
    def change(recipe: dict[str, Any]) -> None:
        one(recipe)
        other(recipe)

    return change


# name of the case: (change, the path of the reported field, a part of the message)
CASES: dict[str, tuple[Change, str, str]] = {
    # unknown fields
    "unknown section": (put("pretrian", {}), "pretrian", "did you mean pretrain"),
    "unknown field": (put("pretrain.step", 5), "pretrain.step", "did you mean steps"),
    "a field that was renamed": (put("corpus.curate", [{"language": {"keep": ["en"], "least": 0.5}}]), "corpus.curate.0.language.least", "is called min_score now"),
    "unknown nested field": (put("pretrain.model.layer", 5), "pretrain.model.layer", "did you mean layers"),
    "unknown field of a source": (put("corpus.source", {"kind": "stdlib", "path": "x"}), "corpus.source.path", "unknown"),
    "unknown field with nothing close": (put("post_training.0.sft.zzz", 1), "post_training.0.sft.zzz", "known: "),
    # fields that Baton fills in
    "a label": (put("post_training.0.sft.label", "mine"), "post_training.0.sft.label", "filled in by Baton from the stage's name"),
    "a mixture beside the sources": (put("pretrain.mixture", {"a": {"weight": 1.0}}), "pretrain.mixture", "from corpus.sources"),
    "a state of the text": (put("corpus.state", "as yesterday"), "corpus.state", "unset: state of the source at the start of the run; filled in by Baton"),
    "a state in a step of a curation": (put("corpus.curate", [{"decontaminate": {"against": ["evaluate"], "index": "x"}}]), "corpus.curate.0.decontaminate.index", "filled in by Baton"),
    # required fields that are missing in an item of a list or a step
    "languages without a language": (put("corpus.curate", [{"language": {}}]), "corpus.curate.0.language.keep", "is required"),
    "a classifier without labels": (put("corpus.curate", [{"classifier": {"model": "x.bin"}}]), "corpus.curate.0.classifier.keep", "is required"),
    "no rules": (put("corpus.curate", [{"pii": {}}, {"quality": {}}]), "corpus.curate.1.quality.rules", "is required"),
    "decontamination against nothing": (put("corpus.curate", [{"decontaminate": {}}]), "corpus.curate.0.decontaminate.against", "is required"),
    "a format without tags": (put("post_training.2.grpo.rewards", [{"format": {}}]), "post_training.2.grpo.rewards.0.format.tags", "is required"),
    # wrong types
    "text for a number": (put("pretrain.steps", "many"), "pretrain.steps", "valid integer"),
    "a fraction for a whole number": (put("pretrain.model.layers", 2.5), "pretrain.model.layers", "valid integer"),
    "a list for a section": (put("pretrain", []), "pretrain", "write `pretrain: {}`"),
    "a number for a section": (put("post_training.2.grpo", 3), "post_training.2.grpo", "write `grpo: {}`"),
    "a number for a name": (put("name", 5), "name", "valid string"),
    "text for a truth value": (put("pretrain.model.tied_embeddings", "perhaps"), "pretrain.model.tied_embeddings", "boolean"),
    "a null for a number": (put("pretrain.steps", None), "pretrain.steps", "valid integer"),
    "not a number": (put("pretrain.optimizer.lr", float("nan")), "pretrain.optimizer.lr", "finite number"),
    "infinity": (put("pretrain.optimizer.lr", float("inf")), "pretrain.optimizer.lr", "finite number"),
    # values that look like another type
    "a truth value for a section": (put("shards", True), "shards", "write `shards: {}`"),
    "a word for a section": (put("shards", "on"), "shards", "write `shards: {}`"),
    "a truth value for a number": (put("pretrain.steps", True), "pretrain.steps", "valid integer"),
    "a truth value for a fraction": (put("corpus.held_out", True), "corpus.held_out", "valid number"),
    "a number in quotes": (put("pretrain.steps", "350"), "pretrain.steps", "valid integer"),
    "a fraction in quotes": (put("pretrain.optimizer.lr", "3e-3"), "pretrain.optimizer.lr", "valid number"),
    "a whole number written as a fraction": (put("pretrain.steps", 350.0), "pretrain.steps", "valid integer"),
    "a number for a truth value": (put("pretrain.mask_documents", 1), "pretrain.mask_documents", "valid boolean"),
    "a truth value for a device's memory": (put("post_training.0.sft.placement", {"memory_gb": True}), "post_training.0.sft.placement.memory_gb", "valid number"),
    # out of bounds
    "no steps": (put("pretrain.steps", 0), "pretrain.steps", "greater than or equal to 1"),
    "negative steps": (put("post_training.0.sft.steps", -1), "post_training.0.sft.steps", "greater than or equal to 1"),
    "negative learning rate": (put("post_training.1.dpo.learning_rate", -1e-4), "post_training.1.dpo.learning_rate", "greater than 0"),
    "absurd learning rate": (put("post_training.2.grpo.learning_rate", 50), "post_training.2.grpo.learning_rate", "less than or equal to 0.1"),
    "everything held out": (put("corpus.held_out", 1.0), "corpus.held_out", "less than 0.5"),
    "nothing held out": (put("corpus.held_out", 0), "corpus.held_out", "greater than 0"),
    "no layers": (put("pretrain.model.layers", 0), "pretrain.model.layers", "greater than or equal to 1"),
    "negative weight decay": (put("pretrain.optimizer.weight_decay", -0.1), "pretrain.optimizer.weight_decay", "greater"),
    "beta2 of one": (put("pretrain.optimizer.beta2", 1.0), "pretrain.optimizer.beta2", "less than 1"),
    "clipping at zero": (put("pretrain.optimizer.clip_grad", 0), "pretrain.optimizer.clip_grad", "greater than 0"),
    "negative seed": (put("pretrain.seed", -1), "pretrain.seed", "greater than or equal to 0"),
    "no vocabulary to speak of": (put("tokenizer.vocab_size", 100), "tokenizer.vocab_size", "greater than or equal to 260"),
    "no prompts": (put("evaluate.statements.prompts", 0), "evaluate.statements.prompts", "greater than or equal to 1"),
    "cold sampling": (put("evaluate.statements.temperature", -1), "evaluate.statements.temperature", "greater than or equal to 0"),
    "more than all probability": (put("evaluate.statements.top_p", 1.5), "evaluate.statements.top_p", "less than or equal to 1"),
    "a loose proof": (put("audit.bound", 1.0), "audit.bound", "less than or equal to 0.01"),
    "no group": (put("post_training.2.grpo.generations", 1), "post_training.2.grpo.generations", "greater than or equal to 2"),
    "DPO without a reference": (put("post_training.1.dpo.beta", 0), "post_training.1.dpo.beta", "greater than 0"),
    "a name with spaces": (put("name", "My Run"), "name", "pattern"),
    "an empty name": (put("name", ""), "name", "pattern"),
    "a time limit of years": (put("pretrain.placement", {"time_limit_h": 1e308}), "pretrain.placement.time_limit_h", "less than or equal to 87600"),
    "a price beyond all money": (put("pretrain.placement", {"max_price_per_run": 1e300}), "pretrain.placement.max_price_per_run", "less than or equal to"),
    "a cloud without a bucket": (put("pretrain.placement", {"infra": ["slurm", "aws/us-east-1"]}), "pretrain.placement.storage", "machines of aws/us-east-1 reach"),
    "accelerators without end": (put("post_training.0.sft.placement", {"accelerators": ["H100:" + "9" * 400]}), "post_training.0.sft.placement.accelerators.0", "pattern"),
    "no accelerators": (put("post_training.0.sft.placement", {"accelerators": ["H100:0"]}), "post_training.0.sft.placement.accelerators.0", "pattern"),
    "a pod's timeout of centuries": (put("corpus.pod", {"timeout": 2**62}), "corpus.pod.timeout", "less than or equal to"),
    "cores beyond counting": (put("corpus.pod", {"resources": {"cpu": 1e308}}), "corpus.pod.resources.cpu", "less than or equal to"),
    "memory of a thousand digits": (put("corpus.pod", {"resources": {"memory": "9" * 1000 + "Gi"}}), "corpus.pod.resources.memory", "pattern"),
    # values that are not one of the choices
    "unknown precision": (put("pretrain.precision", "fp64"), "pretrain.precision", "'bf16', 'fp32' or 'fp8'"),
    "unknown engine": (put("pretrain.engine", "fsdp3"), "pretrain.engine", "'megatron'"),
    "unknown decay": (put("pretrain.optimizer.decay", "step"), "pretrain.optimizer.decay", "'cosine'"),
    "unknown export type": (put("convert.dtype", "int3"), "convert.dtype", "'bf16' or 'fp32'"),
    "unknown kind of source": (put("corpus.source", {"kind": "ftp"}), "corpus.source.kind", "one of stdlib"),
    "a source without its kind": (put("corpus.source", {"path": "."}), "corpus.source.kind", "of these, files, jsonl, parquet, arrow, warc have the given fields"),
    # missing
    "a source as a path": (put("corpus.source", "./text"), "corpus.source", "a mapping of fields with `kind`, one of stdlib"),
    "a named source without its kind": (put("corpus.sources", {"a": {"path": "."}}), "corpus.sources.a.kind", "one of stdlib"),
    "a second corpus without its kind": (put("more_corpora", [{"source": {"path": "."}}]), "more_corpora.0.source.kind", "one of stdlib"),
    "a source without its path": (put("corpus.source", {"kind": "files"}), "corpus.source.path", "is required"),
    "an existing model without its name": (put("start_from", {}), "start_from.model", "is required"),
    # fields that contradict each other
    "heads that do not divide": (put("pretrain.model.kv_heads", 3), "pretrain.model.kv_heads", "must divide heads (4)"),
    "an odd head size": (put("pretrain.model.head_dim", 63), "pretrain.model.head_dim", "must be even"),
    "a micro batch that does not divide": (put("pretrain.layout.micro_batch", 7), "pretrain.layout.micro_batch", "must divide"),
    "a micro batch above the batch": (put("pretrain.layout.micro_batch", 32), "pretrain.layout.micro_batch", "must divide"),
    "more warm-up than steps": (put("pretrain.optimizer.warmup_steps", 9999), "pretrain.optimizer.warmup_steps", "less than"),
    "a rate that rises": (put("pretrain.optimizer.min_lr", 0.5), "pretrain.optimizer.min_lr", "at most lr"),
    "WSD without its decay": (put("pretrain.optimizer.decay", "WSD"), "pretrain.optimizer.wsd_decay_steps", "at least 1"),
    "groups that do not divide": (put("post_training.2.grpo.generations", 7), "post_training.2.grpo.generations", "divisor"),
    "both trained and existing": (put("tokenizer.existing", "."), "tokenizer.vocab_size", "either"),
    "neither trained nor existing": (put("tokenizer", {}), "tokenizer.vocab_size", "either"),
    "two rewards of one name in a stage": (put("post_training.2.grpo.rewards", ["match", "match"]), "post_training.2.grpo.rewards.1.name", "rewards.0 has the same name; set `name:` of one of them"),
    "two rewards of one name for pairs": (put("post_training.1.dpo.pairs.rewards", ["match", "similarity", "match"]), "post_training.1.dpo.pairs.rewards.2.name", "rewards.0 has the same name"),
    "two rewards of one name in an evaluator": (put("evaluate.statements.rewards", ["mine.py:match", "match"]), "evaluate.statements.rewards.1.name", "rewards.0 has the same name"),
    "diversity of nothing": (put("post_training.2.grpo.rewards", ["diversity"]), "post_training.2.grpo.rewards", "another reward beside diversity"),
    # stages that do not fit together
    "sequences beyond the positions": (put("pretrain.sequence_length", 1024), "pretrain.sequence_length", "max_positions (512)"),
    "heads that vLLM cannot serve": (put("pretrain.model.head_dim", 16), "pretrain.model.head_dim", "vLLM"),
    "prompts beyond the positions": (put("post_training.2.grpo.max_prompt_tokens", 500), "post_training.2.grpo.max_prompt_tokens", "max_positions (512)"),
    "answers beyond the positions": (put("evaluate.statements.max_new_tokens", 600), "evaluate.statements.max_new_tokens", "max_positions (512)"),
    "SFT beyond the positions": (put("post_training.0.sft.max_prompt_tokens", 600), "post_training.0.sft.max_prompt_tokens", "max_positions (512)"),
    "vocabulary below the tokenizer's": (put("pretrain.model.vocab_size", 4095), "pretrain.model.vocab_size", "(4096)"),
    "shards without a tokenizer": (drop("tokenizer"), "shards", "needs tokenizer"),
    "pretraining without shards": (drop("shards"), "pretrain", "needs shards"),
    "conversion without a checkpoint": (drop("pretrain"), "convert", "needs pretrain"),
    "post-training on rows that are not there": (put("post_training.0.sft.data", "chat"), "post_training.0.sft.data", "one of statements"),
    "evaluation on rows that are not there": (put("evaluate.statements.data", "chat"), "evaluate.statements.data", "one of statements"),
    "an evaluator of nothing": (put("evaluate.mine", {}), "evaluate.mine", "needs either `data"),
    "a misspelt evaluator's field": (put("evaluate.statements.promts", 1), "evaluate.statements.promts", "did you mean prompts"),
    "two stages in one item": (put("post_training.0.dpo", {"data": "statements"}), "post_training.0", "exactly one of sft, dpo, kto, grpo"),
    "no stage in an item": (put("post_training.0", {"name": "mine"}), "post_training.0", "exactly one of sft, dpo, kto, grpo"),
    "two models of one name": (put("post_training.1.name", "sft"), "post_training.1.name", "another name than base, sft"),
    "a model with a night's title": (put("post_training.0.name", "champion"), "post_training.0.name", "another name than"),
    "a repetition's name": (put("post_training.1.name", "dpo-seed1"), "post_training.1.name", "a name that does not end in -seed and a number"),
    "an adapter of no layer": (put("post_training.0.sft.adapter", {"lora": {"targets": []}}), "post_training.0.sft.adapter.lora.targets", "at least 1"),
    "an adapter of another layer": (put("post_training.0.sft.adapter", {"lora": {"targets": ["q_prj"]}}), "post_training.0.sft.adapter.lora.targets", "down_proj, gate_proj, k_proj"),
    "adapters whose ranks add up": (both(put("post_training.0.sft.adapter", {"lora": {"rank": 500}, "output": "adapter"}), put("post_training.1.dpo.adapter", {"output": "adapter"})), "post_training.1.dpo.adapter.lora.rank", "together with the rank 500 of sft"),
    "seeds of nothing": (both(drop("post_training"), put("seeds", 3)), "seeds", "1, or add `post_training:`"),
    "a start from a later model": (put("post_training.0.start_from", "dpo"), "post_training.0.start_from", "one of base"),
    "pass@k beyond the samples": (put("evaluate.statements.pass_at", [4]), "evaluate.statements.pass_at", "1 to samples (1)"),
    "tuning without a model": (drop("convert"), "post_training", "needs a model"),
    "evaluation without a model": (drop("convert"), "evaluate", "needs a model"),
    "publishing without a model": (drop("convert"), "publish", "needs a model"),
    "two base models": (put("start_from", {"model": "./nowhere"}), "pretrain", "must be left out with start_from"),
    "a corpus more that nobody reads": (
        both(put("more_corpora", [{}]), drop("pretrain", "convert", "evaluate", "post_training", "publish")),
        "more_corpora",
        "none without pretraining",
    ),
    "a weight without a data set": (put("pretrain.data_weights", [0.5, 0.5]), "pretrain.data_weights", "one for the corpus and"),
    "a weight too few": (
        both(put("more_corpora", [{}, {}]), put("pretrain.data_weights", [0.95, 0.05])), "pretrain.data_weights", "one for the corpus and",
    ),
    "half of a character": (put("publish.best", "\udcff"), "publish.best", "text without unpaired surrogates"),
    "a weight below 0": (put("pretrain.data_weights", [-1.0]), "pretrain.data_weights", "0 or more each"),
    "a weight that is no number": (put("pretrain.data_weights", ["much"]), "pretrain.data_weights.0", "valid number"),
    "a metric that nobody measures": (put("publish.best", "statements.tests"), "publish.best", "statements.all_checks"),
    "a reward without a function's name": (
        put("post_training.2.grpo.rewards.0", "reward.py"),
        "post_training.2.grpo.rewards.0",
        "`file.py:function`",
    ),
    "training on a set that is all held out": (
        both(
            put("data.more", {"function": f"{ROOT}/workflows/recipes/arithmetic/sums.py:rows", "held_out": 1.0}),
            put("post_training.0.sft.data", "more"),
        ),
        "data.more.held_out",
        "trains on the set",
    ),
    # items of a list
    "an unknown field of a second corpus": (put("more_corpora", [{}, {"held": 0.1}]), "more_corpora.1.held", "did you mean held_out"),
    "a second corpus without its path": (put("more_corpora", [{"source": {"kind": "files"}}]), "more_corpora.0.source.path", "is required"),
    "a corpus that is not a section": (put("more_corpora", [5]), "more_corpora.0", "a mapping of fields"),
    "a corpus that is not in a list": (put("more_corpora", {"held_out": 0.1}), "more_corpora", "valid list"),
    "a missing folder of a second corpus": (
        put("more_corpora", [{"source": {"kind": "files", "path": "/no/such"}}]), "more_corpora.0.source.path", "does not exist",
    ),
    # insufficient hardware
    "a layout that cannot be, where its price has a limit": (
        both(put("pretrain.layout", {"context": 37}), put("pretrain.placement", {"cpus": 4, "max_price_per_run": 5})),
        "pretrain.layout.processes",
        "multiple of tensor x pipeline x context (37)",
    ),
    "a tuning that cannot be split, where its price has a limit": (
        both(put("post_training.0.sft.layout", {"nodes": 7}), put("post_training.0.sft.placement", {"nodes": 7, "time_limit_h": 5})),
        "post_training.0.sft.layout.sharding",
        "ddp or fsdp2",
    ),
    "a device that nobody knows": (put("pretrain.layout.device", "H900"), "pretrain.layout.device", "one of GB200, B200"),
    "a device without a name": (put("pretrain.layout.device", ""), "pretrain.layout.device", "at least 1 character"),
    "arithmetic that a device has not": (
        both(put("pretrain.precision", "fp8"), put("pretrain.layout.device", "A100")),
        "pretrain.precision",
        "A100 has no fp8",
    ),
    "a model that its device cannot hold": (
        both(put("pretrain.model.ffn_hidden", 262144), both(put("pretrain.model.hidden", 8192), put("pretrain.layout.device", "L4"))),
        "pretrain.layout",
        "on each L4 (24 GB): weights",
    ),
    "a shared expert, for which Hugging Face has no words": (
        both(put("pretrain.model.family", "qwen3_moe"), put("pretrain.model.experts", {"shared_ffn_hidden": 64})),
        "pretrain.model.experts.shared_ffn_hidden",
        "no shared expert",
    ),
    # secrets
    "a password in a setup": (put("post_training.0.sft.placement", {"setup": "export X_PASSWORD=hunter2"}), "post_training.0.sft.placement.setup", "post_training.0.sft.placement.secrets: [NAME]"),
    "a header in a setup": (
        put("more_corpora", [{"placement": {"setup": "curl -H 'Authorization: Bearer hunter22' x"}}]), "more_corpora.0.placement.setup", "placement.secrets",
    ),
    "a secret in place of its name": (put("post_training.0.sft.placement", {"secrets": ["hunter-2"]}), "post_training.0.sft.placement.secrets.0", "pattern"),
    # missing files, models and functions
    "a missing folder": (put("corpus.source", {"kind": "files", "path": "/no/such"}), "corpus.source.path", "does not exist"),
    "a glob without a match": (put("corpus.source", {"kind": "jsonl", "path": "/no/*.jsonl"}), "corpus.source.path", "matches"),
    "a missing model": (put("start_from", {"model": "/no/model"}), "start_from.model", "existing folder"),
    "a variable in a path": (
        put("corpus.source", {"kind": "files", "path": "${TEXTS}/a"}), "corpus.source.path", "variables in a recipe are not expanded",
    ),
    "a missing dataset": (put("corpus.source", {"kind": "huggingface", "name": "/no/set"}), "corpus.source.name", "does not exist"),
    "a path that is too long": (put("corpus.source", {"kind": "files", "path": "x" * 5000}), "corpus.source.path", "too long"),
    "a model's path that is too long": (put("start_from", {"model": "/" + "x" * 5000}), "start_from.model", "too long"),
    "nobody's home folder": (put("tokenizer", {"existing": "~no-such-user/x"}), "tokenizer.existing", "home directory"),
    "a warm-up without an end": (
        put("pretrain.batch_warmup", {"steps": 10**15}), "pretrain.batch_warmup.steps", "less than or equal to 100000",
    ),
    "no room on the disk": (
        put("pretrain.model", {"layers": 256, "hidden": 65536, "ffn_hidden": 262144, "max_positions": 512}),
        "pretrain.checkpoints.keep_last",
        "TB will be written",
    ),
}  # fmt: skip


def recipe_with(change: Change) -> dict[str, Any]:
    recipe: dict[str, Any] = shipped("laptop.yaml")
    change(recipe)
    return recipe


def test_the_laptop_recipe_is_right() -> None:
    assert checked(Recipe.model_validate(recipe_with(lambda recipe: None))).name == "laptop"


def test_there_are_at_least_sixty_wrong_recipes() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_recipe_is_answered_with_path_value_and_way_out(name: str) -> None:
    change, path, allowed = CASES[name]
    with pytest.raises(RecipeError) as caught:
        checked(Recipe.model_validate(recipe_with(change)))
    found = [problem.allowed for problem in caught.value.problems if problem.path == path]
    assert any(allowed in words for words in found), caught.value.problems
    assert caught.value.exit_code == 2
    assert path in caught.value.format_message()
    if isinstance(caught.value.recipe, Recipe):
        lines = list(examined_recipe(caught.value.recipe, caught.value.problems, {}, None, elsewhere=False).lines())
        assert path in lines[-1]


@pytest.mark.parametrize(
    "change",
    [
        put("post_training.0.sft.placement", {"setup": "export X_PASSWORD=hunter2"}),
        put("post_training.0.sft.placement", {"setup": ["export X_PASSWORD=hunter2"]}),
        put("post_training.0.sft.placement", {"setup": "echo hunter2", "nodes": "two"}),
        put("post_training.0.sft", [{"placement": {"setup": "echo hunter2"}}]),
        put("post_training.0.sft.api_key", "hunter2"),
        put("post_training.0.sft.placement", {"env": {"X_PASSWORD": "hunter2"}}),
        put("post_training.0.sft.placement", {"secrets": ["hunter2-in-place-of-its-name"]}),
    ],
)
def test_a_secret_is_not_printed_back(change: Change) -> None:
    with pytest.raises(RecipeError) as caught:
        checked(Recipe.model_validate(recipe_with(change)))
    assert "hunter2" not in caught.value.message
    # the output of plan --json
    assert "hunter2" not in json.dumps([shown(problem) for problem in caught.value.problems])


def test_a_secret_that_is_not_set_is_named() -> None:
    pytest.importorskip("sky", reason="SkyPilot is not in images/gpu.txt")  # a machine without SkyPilot starts no jobs
    with pytest.raises(RecipeError, match=r"sft\.placement\.secrets\.0[^$]*export NO_SUCH_SECRET"):
        checked(
            checked(
                Recipe.model_validate(
                    recipe_with(put("post_training.0.sft.placement", {"secrets": ["NO_SUCH_SECRET"]}))
                )
            )
        )


def test_all_problems_are_reported_at_once() -> None:
    def change(recipe: dict[str, Any]) -> None:
        put("pretrain.step", 5)(recipe)  # an error of pydantic
        put("post_training.0.sft.layout", {"micro_batch": 5})(recipe)  # a check across fields, in another section
        put("corpus.source", {"kind": "files", "path": "/no/such"})(recipe)  # depends on this machine
        drop("tokenizer")(recipe)  # depends on the chain

    with pytest.raises(RecipeError) as caught:
        load(json.dumps(recipe_with(change)), Recipe.model_validate, check=checked)
    paths = {problem.path for problem in caught.value.problems}
    assert {"pretrain.step", "post_training.0.sft.layout.micro_batch", "corpus.source.path", "shards"} <= paths


def test_a_wrong_value_leaves_only_what_depends_on_its_section_unchecked() -> None:
    def change(recipe: dict[str, Any]) -> None:
        put("pretrain.steps", -5)(recipe)
        put("post_training.0.sft.layout", {"micro_batch": 5})(recipe)
        put("corpus.source", {"kind": "files", "path": "/no/such"})(recipe)
        drop("tokenizer")(recipe)
        put("evaluate.statements.max_new_tokens", 600)(recipe)  # exceeds the model's positions, which is checked later

    with pytest.raises(RecipeError, match="once the values are correct") as caught:
        load(json.dumps(recipe_with(change)), Recipe.model_validate, check=checked)
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"pretrain.steps", "post_training.0.sft.layout.micro_batch", "corpus.source.path", "shards"}


def test_an_unknown_field_does_not_hide_what_else_is_wrong_in_its_section() -> None:
    def change(recipe: dict[str, Any]) -> None:
        put("pretrain.step", 5)(recipe)
        put("pretrain.model.layer", 5)(recipe)
        put("pretrain.model.kv_heads", 3)(recipe)

    with pytest.raises(RecipeError) as caught:
        load(json.dumps(recipe_with(change)), Recipe.model_validate, check=checked)
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"pretrain.step", "pretrain.model.layer", "pretrain.model.kv_heads"}


def test_what_stands_in_for_a_required_field_is_no_problem() -> None:
    with pytest.raises(RecipeError) as caught:
        load(json.dumps(recipe_with(put("corpus.curate", [{"function": {}}]))), Recipe.model_validate, check=checked)
    assert [(problem.path, problem.allowed) for problem in caught.value.problems] == [
        ("corpus.curate.0.function.name", "is required")
    ]


def test_an_unknown_field_does_not_hide_what_is_wrong_in_the_rest_of_a_list() -> None:
    missing = {"source": {"kind": "files", "path": "/no/such"}}
    with pytest.raises(RecipeError) as caught:
        load(
            json.dumps(recipe_with(put("more_corpora", [{"held": 0.1}, missing]))), Recipe.model_validate, check=checked
        )
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"more_corpora.0.held", "more_corpora.1.source.path"}


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="has none"):
        checked(Recipe.model_validate(recipe_with(put("corpus.source", {"kind": "files", "path": str(tmp_path)}))))


def test_files_without_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(RecipeError, match="empty"):
        checked(Recipe.model_validate(recipe_with(put("corpus.source", {"kind": "files", "path": str(tmp_path)}))))


def test_a_vocabulary_below_an_existing_tokenizers_is_refused(tmp_path: Path) -> None:
    vocabulary = {f"t{index}": index for index in range(5000)}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))

    def change(recipe: dict[str, Any]) -> None:
        put("tokenizer", {"existing": str(tmp_path)})(recipe)
        put("pretrain.model.vocab_size", 4096)(recipe)

    with pytest.raises(RecipeError, match=r"\(5000\)"):
        checked(Recipe.model_validate(recipe_with(change)))


@pytest.mark.parametrize(
    ("section", "field", "file"), [("tokenizer", "existing", "tokenizer.json"), ("start_from", "model", "config.json")]
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, section: str, field: str, file: str) -> None:
    (tmp_path / file).write_text('{"cut short')
    with pytest.raises(RecipeError) as caught:
        checked(Recipe.model_validate(recipe_with(put(section, {field: str(tmp_path)}))))
    assert any(problem.path == f"{section}.{field}" and file in problem.allowed for problem in caught.value.problems)


def test_another_tokenizer_than_that_of_the_model_it_starts_from_is_refused(tmp_path: Path) -> None:
    """It has the same number of tokens at other ids, which no other check would detect."""
    started = put("init_from", {"model": str(folder(tmp_path / "model", byte_level(END, PAD)))})
    for tokenizer, message in (
        ({"vocab_size": 4096}, "None.* the tokenizer of init_from.model"),
        (
            {"existing": str(folder(tmp_path / "other", byte_level(PAD, END)))},
            r"2 ids are other tokens; 0, for example",
        ),
    ):
        with pytest.raises(RecipeError, match=f"(?s)tokenizer.existing: .*{message}"):
            checked(Recipe.model_validate(recipe_with(started) | {"tokenizer": tokenizer}))
    with pytest.raises(RecipeError) as caught:  # the model has no weights
        checked(Recipe.model_validate(recipe_with(started) | {"tokenizer": {"existing": str(tmp_path / "model")}}))
    assert not any(problem.path.startswith("tokenizer") for problem in caught.value.problems)


def test_of_several_chat_templates_one_must_be_chosen(tmp_path: Path) -> None:
    named = [{"name": name, "template": name} for name in ("rag", "tool_use")]
    existing = str(folder(tmp_path, byte_level(), chat_template=named))
    with pytest.raises(RecipeError, match=r"(?s)tokenizer\.chat_template: .*rag, tool_use, and none is called default"):
        checked(Recipe.model_validate(recipe_with(put("tokenizer", {"existing": existing}))))
    checked(Recipe.model_validate(recipe_with(put("tokenizer", {"existing": existing, "chat_template": "rag"}))))
    with pytest.raises(RecipeError, match=r"(?s)tokenizer\.chat_template: 'rag'.*only with `existing`"):
        checked(Recipe.model_validate(recipe_with(put("tokenizer", {"vocab_size": 4096, "chat_template": "rag"}))))


def test_another_model_than_the_one_it_starts_from_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "num_hidden_layers": 3}))
    for name in ("model.safetensors", "tokenizer_config.json"):
        (tmp_path / name).touch()
    with pytest.raises(RecipeError, match=r"3, as init_from\.model's num_hidden_layers is"):
        checked(Recipe.model_validate(recipe_with(put("init_from", {"model": str(tmp_path)}))))


@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        (
            {"prompt": "a", "answer": "b"},
            "post_training.0.sft.data",
            "rows of kind messages or prompt_completion or text",
        ),
        ({"messages": [{"role": "robot", "content": "a"}]}, "data.mine.path", "line 1"),
        ({"question": "a"}, "data.mine.path", "line 1"),
    ],
)
def test_the_first_rows_are_looked_at(row: dict[str, Any], field: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(json.dumps(row) + "\n")
    recipe = shipped("laptop.yaml")
    recipe["data"]["mine"] = {"path": str(tmp_path / "mine.jsonl")}
    recipe["post_training"][0]["sft"]["data"] = "mine"
    with pytest.raises(RecipeError) as caught:
        checked(Recipe.model_validate(recipe))
    (problem,) = caught.value.problems
    assert problem.path == field and words in problem.allowed


def test_files_that_a_stage_s_identity_cannot_have_are_a_problem_among_others_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a task of lm-eval is part of the stage's identity."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"task": "mine", "dataset_path": "json"}))
    exams = {"mine": {"lm_eval": [str(tmp_path / "mine.yaml")]}, "other": {"lm_eval": ["no/such.yaml"]}}
    for names in (["mine"], ["mine", "other"]):
        chosen = {name: exams[name] for name in names}
        recipe = {"name": "exam", "start_from": {"model": "owner/name"}, "evaluate": chosen}
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        result = CliRunner().invoke(main, [str(tmp_path / "recipe.yaml")])
        assert result.exit_code == 2, result.output
        assert "this one contains the current directory" in " ".join(result.output.split())
        assert [f"evaluate.{name}.lm_eval: " in result.output for name in exams] == [name in names for name in exams]
