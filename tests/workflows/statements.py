"""The rows and rewards of the example, with absolute paths, for the recipes of tests."""

from typing import Any

from tests.source import ROOT

FOLDER = ROOT / "workflows/recipes/python_statements"
QUALITY, ALL_CHECKS = (f"{FOLDER / 'rewards.py'}:{name}" for name in ("quality", "all_checks"))
DATA: dict[str, Any] = {
    "statements": {"function": f"{FOLDER / 'rows.py'}:rows", "documents": True, "arguments": {"max_prompt_chars": 200}}
}
ASKED: dict[str, Any] = {"data": "statements", "rewards": [ALL_CHECKS], "prompts": 12, "max_new_tokens": 16}
TUNE: dict[str, Any] = {
    "data": "statements",
    "batch_size": 8,
    "layout": {"micro_batch": 8},
    "warmup_steps": 1,
    "max_prompt_tokens": 80,
    "max_new_tokens": 16,
}
SFT: dict[str, Any] = {"sft": {"steps": 3, **TUNE}}
DPO: dict[str, Any] = {"dpo": {"steps": 2, "pairs": {"rewards": [QUALITY], "prompts": 48}, **TUNE}}
GRPO: dict[str, Any] = {"grpo": {"steps": 2, "generations": 4, "rewards": [QUALITY, {"diversity": {}}], **TUNE}}
