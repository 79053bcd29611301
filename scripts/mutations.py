"""Mutations of a source file: the small changes that its tests are to notice.

Most operators are those of mutmut, which yields replacements of libcst nodes; ours are of the same
form. mutmut's own runner is not used: it switches mutants by functions in one process, so commands
and ranks that tests start would run the original, and it leaves out decorated functions.
"""

import ast
import functools
import hashlib
import re
from collections import Counter
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider
from mutmut.mutation import mutators

TEXTS = ("__str__", "__repr__")
"""Functions that make texts."""
LOGS = re.compile(
    r"((self\.)?_?(log|logger|logging|LOG|warnings)\.\w+|log|print|print_line|print_once|say_once)"
)
"""Calls that write logs."""
TYPES = ("cast", "TypeVar", "NewType", "isinstance", "issubclass", "overload")
"""Calls about types: a change in them is seen by mypy, or changes nothing."""
PATIENCE = re.compile(r"_?[A-Z][A-Z_]*_S")
"""Constants of times, whose exact value is no promise."""
FLAGS = ("encoding", "forbid_unknown_fields", "frozen", "gc", "kw_only", "slots", "strict", "total")
"""Arguments that correct code does not depend on."""
LARGEST = 10
"""To numbers above it nothing is added: most are bounds with an arbitrary value."""
SWAPS = {"min": "max", "max": "min", "any": "all", "all": "any"}
SYMMETRIC = (*SWAPS, "gcd", "isclose", "lcm", "math.gcd", "math.isclose")
"""Calls whose arguments have no order."""
WIDTH = 60
"""Characters of a mutation in a table."""


@dataclass(frozen=True)
class Mutation:
    """A change of one node.

    Attributes:
        file: relative to the checkout.
        line: where the node begins.
        text: of that line.
        lines: first and last line of its statement (of a compound one: of its head).
        kind: name of the operator.
        number: among all mutations of the file, in its order.
        inside: whether it is in a function; what is not is executed by an import.
        key: name that stays the same while other lines of the file change.
    """

    file: str
    line: int
    text: str
    lines: tuple
    kind: str
    number: int
    inside: bool
    key: str


@dataclass(frozen=True)
class Mutant:
    """A mutation with the changed source of its file, and its node before and after in short."""

    mutation: Mutation
    code: str
    before: str
    after: str

    @property
    def words(self):
        """The change as text."""
        return f"{self.before} -> {self.after}"


# --- operators: from a node to its replacements --------------------------------------------------


def _removed(node):
    """A statement without which Python still knows all names: a call, a raise, an attribute."""
    if len(node.body) != 1:
        return
    small = node.body[0]
    call = m.Call() | m.Await(m.Call()) | m.Yield() | m.Await()
    place = m.AssignTarget(m.Attribute() | m.Subscript())
    if m.matches(
        small, m.Expr(call) | m.Raise() | m.Assign([place]) | m.AugAssign() | m.Del()
    ) or _is_update(small):
        yield node.with_changes(body=[cst.Pass()])


def _is_update(small):
    """Return whether a statement assigns to a name that its value has too."""
    if not m.matches(small, m.Assign([m.AssignTarget(m.Name())])):
        return False
    name = small.targets[0].target.value
    return bool(m.findall(small.value, m.Name(name)))


def _returned(node):
    if node.value is not None and not m.matches(node.value, m.Name("None")):
        value = cst.Name("None")
        yield node.with_changes(value=value, whitespace_after_return=cst.SimpleWhitespace(" "))


def _swapped(node):
    """The first two arguments by position that differ."""
    if _called(node) in SYMMETRIC:
        return
    args = node.args
    for n in range(len(args) - 1):
        first, second = args[n : n + 2]
        if first.keyword or second.keyword or first.star or second.star:
            return
        if not first.value.deep_equals(second.value):
            pair = [first.with_changes(value=second.value), second.with_changes(value=first.value)]
            yield node.with_changes(args=[*args[:n], *pair, *args[n + 2 :]])
            return


def _without(node):
    """A block without its context manager, where the block does not use it."""
    if all(item.asname is None for item in node.items):
        yield cst.If(test=cst.Name("True"), body=node.body, leading_lines=node.leading_lines)


def _negated(node):
    if not m.matches(node.test, m.Comparison() | m.UnaryOperation(operator=m.Not())):
        test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        negated = cst.UnaryOperation(operator=cst.Not(), expression=test)
        yield node.with_changes(test=negated, whitespace_before_test=cst.SimpleWhitespace(" "))


def _extreme(node):
    if node.value in SWAPS:
        yield node.with_changes(value=SWAPS[node.value])


def _unset(node):
    """A number that is not 0 as 0; mutmut adds one to every number."""
    if node.value not in ("0", "0.0", "1", "1.0"):
        yield node.with_changes(value="0" if isinstance(node, cst.Integer) else "0.0")


FROM_MUTMUT = (
    *("number", "name", "remove_unary_ops", "keywords", "swap_op", "augmented_assignment"),
    *("symmetric_string_methods_swap", "unsymmetrical_string_methods_swap", "match", "if_exp"),
)
"""Others of mutmut's change texts, or types, which mypy sees (None as an argument)."""

OWN = (
    (cst.SimpleStatementLine, "removed", _removed),
    (cst.Return, "return None", _returned),
    (cst.Call, "swapped arguments", _swapped),
    (cst.With, "without with", _without),
    (cst.If, "negated", _negated),
    (cst.Name, "extreme", _extreme),
    (cst.Integer, "number 0", _unset),
    (cst.Float, "number 0", _unset),
)


def _operators():
    """Return the operators: the type of their nodes, a name, and the function."""
    theirs = [
        (kind, operator.__name__.removeprefix("operator_").replace("_", " "), operator)
        for kind, operator in mutators.mutation_operators
        if operator.__name__.removeprefix("operator_") in FROM_MUTMUT
    ]
    return [*theirs, *OWN]


# --- where they are applied ----------------------------------------------------------------------


class _Collector(cst.CSTVisitor):
    """Collects replacements of all nodes but those in which no test is expected to notice them."""

    METADATA_DEPENDENCIES = (PositionProvider, ParentNodeProvider)

    def __init__(self, file, source):
        super().__init__()
        self.made = []
        self._file, self._source = file, source.splitlines()
        self._same = Counter()
        self._operators = _operators()

    def on_visit(self, node):
        if self._is_left_out(node):
            return False
        for kind, name, operator in self._operators:
            if isinstance(node, kind):
                for replacement in operator(node):
                    if name == "number" and abs(node.evaluated_value) > LARGEST:
                        continue
                    self.made.append((self._mutation(node, name), node, replacement))
        # The raise may be removed; its message is a text.
        return not isinstance(node, cst.Raise)

    def _mutation(self, node, name):
        line, lines = self._lines(node)
        text = self._source[line - 1].strip()
        alike = self._file, name, text
        words = "\n".join([*alike, str(self._same[alike])])
        self._same[alike] += 1
        key = hashlib.sha256(words.encode()).hexdigest()[:16]
        inside = self._is_in_function(node)
        return Mutation(self._file, line, text, lines, name, len(self.made), inside, key)

    def _is_left_out(self, node):
        if isinstance(node, cst.Annotation | cst.Decorator | cst.Assert | cst.FormattedString):
            return True
        if isinstance(node, cst.Import | cst.ImportFrom | cst.TypeAlias | cst.Global):
            return True
        if isinstance(node, cst.FunctionDef):
            return node.name.value in TEXTS
        if isinstance(node, cst.If):
            return m.matches(
                node.test, m.Name("TYPE_CHECKING") | m.Attribute(attr=m.Name("TYPE_CHECKING"))
            )
        if isinstance(node, cst.Arg):
            return node.keyword is not None and node.keyword.value in FLAGS
        if isinstance(node, cst.Assign | cst.AnnAssign):
            targets = node.targets if isinstance(node, cst.Assign) else [node.target]
            names = [name.value for target in targets for name in m.findall(target, m.Name())]
            return any(name.startswith("__") or PATIENCE.fullmatch(name) for name in names)
        if isinstance(node, cst.SimpleStatementLine):
            return m.matches(node.body[0], m.Expr(m.Call() | m.Await(m.Call()))) and bool(
                LOGS.fullmatch(_called(node.body[0].value))
            )
        if isinstance(node, cst.Call):
            return _called(node).rpartition(".")[2] in TYPES
        # `A | B` of types is evaluated where modules and classes are.
        outside = isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitOr)
        return outside and not self._is_in_function(node)

    def _is_in_function(self, node):
        while not isinstance(node, cst.Module):
            node = self.get_metadata(ParentNodeProvider, node)
            if isinstance(node, cst.FunctionDef | cst.Lambda):
                return True
        return False

    def _lines(self, node):
        """Return a node's first line, and the lines of its statement or of the statement's head."""
        line = self.get_metadata(PositionProvider, node).start.line
        statement = node
        while not isinstance(statement, cst.BaseStatement | cst.Module):
            statement = self.get_metadata(ParentNodeProvider, statement)
        where = self.get_metadata(PositionProvider, statement)
        last = where.end.line
        # The defaults of a function matter to the tests that call it.
        compound = isinstance(statement, cst.BaseCompoundStatement)
        if compound and not isinstance(statement, cst.FunctionDef):
            body = statement.cases[0] if isinstance(statement, cst.Match) else statement.body
            last = max(line, self.get_metadata(PositionProvider, body).start.line - 1)
        return line, (where.start.line, last)


def _called(node):
    """Return the name of what an expression calls, as it is written."""
    if isinstance(node, cst.Await):
        node = node.expression
    return cst.Module([]).code_for_node(node.func) if isinstance(node, cst.Call) else ""


@functools.lru_cache(maxsize=4)
def _collected(file, source):
    wrapper = MetadataWrapper(cst.parse_module(source))
    collector = _Collector(file, source)
    wrapper.visit(collector)
    return wrapper.module, collector.made


def mutations_of(file, source):
    """Return all mutations of a source file; :func:`mutated` makes one, if it is usable."""
    return [mutation for mutation, _, _ in _collected(file, source)[1]]


def mutated(source, mutation):
    """Return a mutant, or None if it does not compile or means the same."""
    module, made = _collected(mutation.file, source)
    _, node, replacement = made[mutation.number]
    code = module.deep_replace(node, replacement).code
    try:
        if ast.dump(ast.parse(code)) == ast.dump(ast.parse(source)):
            return None
        compile(code, mutation.file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    before, after = (" ".join(module.code_for_node(one).split()) for one in (node, replacement))
    if isinstance(node, cst.If | cst.With):
        before, after = (text.partition(": ")[0] for text in (before, after))
    return Mutant(mutation, code, *_words(before, after))


def _words(before, after):
    """Return two texts, cut a little before they differ, and where they are long."""
    same = next(
        (n for n, pair in enumerate(zip(before, after, strict=False)) if len({*pair}) > 1), 0
    )
    begin = max(0, same - WIDTH // 3)
    texts = [("..." if begin else "") + text[begin:] for text in (before, after)]
    return [text if len(text) <= WIDTH else text[: WIDTH - 3] + "..." for text in texts]


def sample(mutations, sources, size, seed):
    """Return so many mutants, as many of each folder as far as it has them.

    The order depends on the seed and on the changed lines only, so a larger sample has the smaller
    one in it, and after a change of the code nearly all of a sample is the same.

    Args:
        mutations: lists of mutations by folder.
        sources: texts by file.
    """
    chosen = {}
    shares = {folder: size // len(mutations) for folder in mutations}
    for folder in sorted(mutations)[: size % len(mutations)]:
        shares[folder] += 1
    for folder, all_of_it in mutations.items():
        queue = sorted(all_of_it, key=lambda one: _lot(seed, one))
        usable = chosen[folder] = []
        while queue and len(usable) < shares[folder]:
            wanted = shares[folder] - len(usable)
            part, queue = queue[:wanted], queue[wanted:]
            # A file's tree is made once, not for each of its mutations.
            made = {one: mutated(sources[one.file], one) for one in sorted(part, key=_place)}
            usable += [made[one] for one in part if made[one] is not None]
    return [mutant for folder in mutations for mutant in chosen[folder]]


def _lot(seed, mutation):
    return hashlib.sha256(f"{seed} {mutation.key}".encode()).digest()


def _place(mutation):
    return mutation.file, mutation.number
