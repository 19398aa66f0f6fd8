from tasks.spec import Spec


class RewardSpec(Spec):
    """(written on another branch)"""

    function: str | None = None
    weight: float = 1.0
    name: str | None = None
