"""What a DPO run is."""

from typing import Literal

from pydantic import Field

from tasks.posttrain.spec import PostTrainSpec


class DPOSpec(PostTrainSpec):
    """Direct preference optimization: the real statement over the model's own that fails the checks."""

    engine: Literal["trl"] = Field("trl", description="the program that tunes")
    prompts: int = Field(
        1200, ge=1, le=10_000_000, description="training prompts that the model is sampled on, once each"
    )
    steps: int = Field(30, ge=1, le=1_000_000, description="optimizer steps")
    batch_size: int = Field(32, ge=1, le=65_536, description="pairs per optimizer step")
    micro_batch_size: int = Field(32, ge=1, le=65_536, description="pairs in one forward and backward pass")
    learning_rate: float = Field(3e-4, gt=0, le=0.1, description="peak of AdamW's learning rate")
    beta: float = Field(0.1, gt=0, le=10, description="how strongly the preference holds to the reference model")
    sft_weight: float = Field(
        0.2,
        ge=0,
        le=10,
        description="weight of the chosen statements' own loss, which keeps them from becoming unlikely",
    )
