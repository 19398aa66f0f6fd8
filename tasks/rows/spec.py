from tasks.spec import StageSpec


class RowsSpec(StageSpec):
    """(written on another branch)"""
