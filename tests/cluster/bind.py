"""Literals for a node's inputs, as Flyte's propeller resolves bindings: a promised literal travels with its hash, a
constant is a scalar without one."""

from collections.abc import Iterable, Mapping

from flyteidl.core.literals_pb2 import Binding, BindingData, Literal, LiteralMap

START = "start-node"

Known = Mapping[str, LiteralMap]  # a node's outputs by its id; the workflow's inputs are those of START


def bind(bindings: Iterable[Binding], known: Known) -> LiteralMap:
    return LiteralMap(literals={each.var: _literal(each.binding, known) for each in bindings})


def upstream(bindings: Iterable[Binding]) -> set[str]:
    """The nodes whose outputs are promised."""
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
            literal.collection.SetInParent()  # an empty list is a collection too
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
