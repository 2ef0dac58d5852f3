"""Condition: what a breakpoint looks for in an event, written as one short line.

    BlockCopied                          an event of this kind
    block == 17                          one that names block 17, whatever its part in it
    BlockCopied and block in (17, 25)    joined with and, or, not and parentheses
    ref_count > 2 and request == "A"     every field of an event is a name; text is quoted
    free < 3                             an event that changed how many blocks are free, and left fewer than 3

`block`, `sequence` and `request` stand for whichever of them the event names, `free` for the free blocks of the pool
after it, every other name for the event's own field. An event without that field does not match.

The line is parsed by Python's `ast` and translated node by node; whatever is not in the list above is refused, so no
text that a user types is ever run.
"""

import ast
import operator
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, NamedTuple, NoReturn

from .errors import PagelensError
from .event_names import CLOSED, IS_NUMBER, KINDS, Facts, has, names_of, value_of

LONGEST = 500
_ORDERINGS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_EQUALITIES = (ast.Eq, ast.In)
_INEQUALITIES = (ast.NotEq, ast.NotIn)
_CHANGES_FREE = frozenset({"BlockAllocated", "BlockShared", "BlockReleased"})


class ConditionError(PagelensError):
    """A condition cannot be read, or can never be true; the message says where, and what is known."""


class _Part(NamedTuple):
    """A translated piece: the kinds that it can be true for, the test, and whether it is about `free` alone."""

    kinds: frozenset[str]
    test: Callable[[Facts], bool]
    only_free: bool = False

    def settled(self) -> "_Part":
        """`free < 3` alone is true of every event while memory is low: look at those that made it so."""
        if not self.only_free:
            return self
        return _Part(self.kinds & _CHANGES_FREE, lambda facts: facts.changed_free and self.test(facts))


class Condition:
    """A condition ready to be asked. Raises ConditionError if `text` is none."""

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        self.kinds, self._test, _ = _Translator(self.text).translate().settled()

    def matches(self, facts: Facts) -> bool:
        """Whether the event is what this condition waits for."""
        return type(facts.event).__name__ in self.kinds and self._test(facts)


class _Translator:
    def __init__(self, text: str) -> None:
        self.text = text

    def translate(self) -> _Part:
        if not self.text:
            raise ConditionError("the condition is empty: name an event kind, or compare a name, as in block == 17")
        if len(self.text) > LONGEST:
            raise ConditionError(f"the condition has {len(self.text)} characters, allowed are {LONGEST}")
        try:
            tree = ast.parse(self.text, mode="eval")
        except SyntaxError as error:
            column = min(error.offset or 1, len(self.text))
            raise ConditionError(
                f"cannot read {self.text!r} at column {column}: {error.msg}; text is quoted, as in "
                'sequence == "A.0", and equality is =='
            ) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise ConditionError(f"cannot read the condition: {error}") from None
        part = self._part(tree.body)
        if not part.kinds:
            raise ConditionError(f"no event can ever match {self.text!r}: {self._contradiction(tree.body)}")
        return part

    def _part(self, node: ast.expr) -> _Part:
        match node:
            case ast.Name(id=name) if name in KINDS:
                return _Part(frozenset({name}), lambda facts: type(facts.event).__name__ == name)
            case ast.BoolOp(op=ast.And(), values=values):
                parts = [self._part(value) for value in values]
                tests = [part.test for part in parts]
                kinds = frozenset.intersection(*(part.kinds for part in parts))
                return _Part(kinds, lambda facts: all(t(facts) for t in tests), all(p.only_free for p in parts))
            case ast.BoolOp(op=ast.Or(), values=values):
                parts = [self._part(value).settled() for value in values]
                tests = [part.test for part in parts]
                kinds = frozenset.union(*(part.kinds for part in parts))
                return _Part(kinds, lambda facts: any(t(facts) for t in tests))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                part = self._part(operand)
                return _Part(KINDS, lambda facts: not part.test(facts), part.only_free)
            case ast.Compare():
                return self._comparison(node)
            case ast.Name(id=name) if name in IS_NUMBER:
                self._refuse(node, f"{name} alone is no condition: compare it, as in {name} == {_example(name)}")
            case ast.Name():
                self._refuse_name(node)
        self._refuse(node, "only event kinds and comparisons can stand here, joined with and, or, not")

    def _comparison(self, node: ast.Compare) -> _Part:
        operands = [node.left, *node.comparators]
        names = frozenset(operand.id for operand in operands if isinstance(operand, ast.Name))
        values = [self._operand(operand) for operand in operands]
        if not names:
            self._refuse(node, "this compares nothing that an event has")
        self._check_types(operands, node.ops)
        tests = [_compare(op) for op in node.ops]
        kinds = frozenset(kind for kind in KINDS if all(has(kind, name) for name in names))

        def test(facts: Facts) -> bool:
            found = [value(facts) for value in values]
            return all(test(found[i], found[i + 1]) for i, test in enumerate(tests))

        return _Part(kinds, test, names == {"free"})

    def _operand(self, node: ast.expr) -> Callable[[Facts], tuple[Any, ...]]:
        """The values that one side of a comparison can have: several where an event names several blocks, say."""
        match node:
            case ast.Name(id=name) if name in IS_NUMBER:
                return value_of(name)
            case ast.Name():
                self._refuse_name(node)
            case ast.Tuple() | ast.List() | ast.Set():
                constants = tuple(self._constant(item) for item in node.elts)
            case _:
                constants = (self._constant(node),)
        return lambda facts: constants

    def _constant(self, node: ast.expr) -> int | float | str:
        match node:
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=int() | float() | str() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if value is not True:
                return -value
            case ast.Name(id=name) if name not in IS_NUMBER:
                self._refuse_name(node)
        self._refuse(node, "only a name, a number or a quoted text can be compared")

    def _check_types(self, operands: list[ast.expr], ops: list[ast.cmpop]) -> None:
        named = [operand for operand in operands if isinstance(operand, ast.Name)]
        is_number = IS_NUMBER[named[0].id]
        for operand in operands:
            for value in self._literals(operand):
                if isinstance(value, str) is is_number:
                    a, b = ("a number", "text") if is_number else ("text", "a number")
                    self._refuse(operand, f"{named[0].id} is {a}, {value!r} is {b}")
                allowed = CLOSED.get(named[0].id)
                if allowed is not None and value not in list(allowed):
                    self._refuse(operand, f"{named[0].id} is never {value!r}, but one of: {', '.join(allowed)}")
            if isinstance(operand, ast.Name) and IS_NUMBER[operand.id] is not is_number:
                self._refuse(operand, f"{named[0].id} and {operand.id} are a number and a text")
        for op in ops:
            if type(op) in _ORDERINGS and not is_number:
                self._refuse(named[0], f"{named[0].id} is text: compare it with ==, != or in")
            if type(op) not in (*_ORDERINGS, *_EQUALITIES, *_INEQUALITIES):
                self._refuse(named[0], "compare with ==, !=, <, <=, >, >=, in or not in")

    def _literals(self, node: ast.expr) -> tuple[Any, ...]:
        if isinstance(node, ast.Name):
            return ()
        nodes = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
        return tuple(self._constant(item) for item in nodes)

    def _contradiction(self, node: ast.expr) -> str:
        named = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
        kinds = sorted({name for name in named if name in KINDS})
        if len(kinds) == 1:
            return f"{kinds[0]} has only {', '.join(names_of(kinds[0]))}"
        if kinds:
            return f"it cannot be {' and '.join(kinds)} at once; join kinds with or"
        return f"no kind has {' and '.join(sorted(set(named)))} together"

    def _refuse_name(self, node: ast.Name) -> NoReturn:
        known = sorted(KINDS) if node.id[:1].isupper() else sorted(IS_NUMBER)
        near = get_close_matches(node.id, [*KINDS, *IS_NUMBER], n=1)
        hint = f"perhaps {near[0]}; " if near else ""
        self._refuse(node, f"unknown name {node.id!r}, {hint}text is quoted; known are: {', '.join(known)}")

    def _refuse(self, node: ast.expr, what: str) -> NoReturn:
        column = len(self.text.encode()[: node.col_offset].decode()) + 1
        raise ConditionError(f"at column {column} of {self.text!r}: {what}")


def _compare(op: ast.cmpop) -> Callable[[tuple[Any, ...], tuple[Any, ...]], bool]:
    """One pair of values must do; for != and not in, both sides must have some, and no pair may be equal."""
    if isinstance(op, _EQUALITIES):
        return lambda left, right: any(a == b for a in left for b in right)
    if isinstance(op, _INEQUALITIES):
        return lambda left, right: bool(left and right) and all(a != b for a in left for b in right)
    compare = _ORDERINGS[type(op)]
    return lambda left, right: any(compare(a, b) for a in left for b in right)


def _example(name: str) -> str:
    closed = CLOSED.get(name)
    if closed is not None:
        return repr(str(next(iter(closed))))
    return "17" if IS_NUMBER[name] else '"A"' if name == "request" else '"A.0"'
