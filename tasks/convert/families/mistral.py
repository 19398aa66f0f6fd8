"""Mistral: Llama's weights; every layer may have a sliding window (Jiang et al. 2023)."""

from baton.tasks.convert.architecture import Architecture
from baton.tasks.convert.config import Config
from baton.tasks.convert.families.family import Family, one_window, silu, sizes
from baton.tasks.convert.families.llama import TABLE


def read(config: Config) -> Architecture:
    silu(config)
    return sizes(config, windows=one_window(config))


FAMILY = Family("mistral", "MistralForCausalLM", read, TABLE)
