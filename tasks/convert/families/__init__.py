"""The supported model families, one file each."""

from baton.tasks.convert.architecture import Architecture
from baton.tasks.convert.config import Config
from baton.tasks.convert.families import (
    deepseek_v3,
    gemma2,
    gemma3,
    llama,
    mistral,
    mixtral,
    olmo2,
    qwen2,
    qwen3,
    qwen3_moe,
)
from baton.tasks.convert.families.family import Family
from baton.tasks.models.errors import ConversionError
from baton.tasks.models.fields import check_types, shown

FILES = (llama, mistral, qwen2, qwen3, qwen3_moe, mixtral, gemma2, gemma3, olmo2, deepseek_v3)
FAMILIES: dict[str, Family] = {file.FAMILY.model_type: file.FAMILY for file in FILES}


def family_of(fields: dict[str, object]) -> Family:
    """Return the family of a config.json. Raises ConversionError."""
    name = fields.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ConversionError(f"config.json: model_type is {shown(name)}; the converter supports {', '.join(FAMILIES)}")
    return FAMILIES[name]


def read(fields: dict[str, object]) -> Architecture:
    """Return the architecture of a config.json that has all defaults filled in. Raises ConversionError."""
    check_types(fields)
    config = Config(fields)
    model = family_of(fields).read(config)
    config.finish()
    return model
