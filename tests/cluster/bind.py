"""Resolve the inputs of a node as Flyte's propeller does: a promised literal keeps its hash, and a constant is a scalar
without one."""

from collections.abc import Iterable, Mapping

from flyteidl.core.literals_pb2 import Binding, BindingData, Literal, LiteralMap

START = "start-node"

Known = Mapping[str, LiteralMap]  # outputs of each node by its id; the workflow's inputs have the id START


def bind(bindings: Iterable[Binding], known: Known) -> LiteralMap:
    return LiteralMap(literals={each.var: _literal(each.binding, known) for each in bindings})


def upstream(bindings: Iterable[Binding]) -> set[str]:
    """Return the nodes whose outputs are promised."""
    return set().union(*(_nodes(each.binding) for each in bindings))


def _literal(data: BindingData, known: Known) -> Literal:
    match data.WhichOneof("value"):
        case "scalar":
            return Literal(scalar=data.scalar)
        case "promise":
            if data.promise.attr_path:
                raise NotImplementedError("a promise's attribute")
            return known[data.promise.node_id or START].literals[data.promise.var]
        case "collection":
            literal = Literal()
            literal.collection.SetInParent()  # set the field even for an empty list
            literal.collection.literals.extend(_literal(each, known) for each in data.collection.bindings)
            return literal
        case "map":
            literal = Literal()
            literal.map.SetInParent()
            for name, each in data.map.bindings.items():
                literal.map.literals[name].CopyFrom(_literal(each, known))
            return literal
        case other:
            raise NotImplementedError(f"a binding of {other}")


def _nodes(data: BindingData) -> set[str]:
    match data.WhichOneof("value"):
        case "promise":
            return {data.promise.node_id or START}
        case "collection":
            return set().union(*(_nodes(each) for each in data.collection.bindings))
        case "map":
            return set().union(*(_nodes(each) for each in data.map.bindings.values()))
        case _:
            return set()
