"""What becomes of a joint graph when a compiler makes kernels of it: which values are stored at all, and for how long.

A model of torch's own compiler, in two of its rules. What is pointwise is not stored but made within whatever reads it,
unless a kernel of a library reads it, or too much goes into it for making it twice. What is stored lives from its own
place in the graph to its last reader. Torch then joins more kernels and moves them about, and lets some write over what
dies in them; that is left out. `benchmarks/compiled_peaks.py` holds this to torch's own compiler.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from frugan.memory.joint_graph import JointGraph, Operation, OperationKind

MOST_READ = 8
"""Values that one pointwise expression may read before it is stored (`realize_acc_reads_threshold`)."""
MOST_READ_TWICE = 4
"""The same where several read it (`realize_reads_threshold`)."""
MOST_OPERATIONS_TWICE = 30
"""Operations of an expression that is made again in each of several readers (`realize_opcount_threshold`)."""


@dataclass(frozen=True)
class Kernel:
    """One kernel.

    Attributes:
        makes: numbers of the values that it stores.
        reads: number of a value -> bytes.
        macs, fp32_macs: multiply-accumulates, and those of them on fp32 numbers.
        bytes_moved: by it.
        place: where the last of its operations was asked for.
    """

    makes: tuple[int, ...]
    reads: dict[int, int]
    macs: int
    fp32_macs: int
    bytes_moved: int
    place: str


@dataclass(frozen=True)
class _Expression:
    """A pointwise value that is not stored: what it reads, and how many operations make it."""

    reads: dict[int, int]
    operations: int


def kernels_of(graph: JointGraph) -> list[Kernel]:
    """Group a graph's operations into kernels, in order."""
    operations = graph.needed()
    readers: defaultdict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        for number in operation.reads:
            readers[number].append(operation)
    results = {*graph.results}
    inside: dict[int, _Expression] = {}
    kernels: list[Kernel] = []
    for operation in operations:
        expression = (
            _Expression(operation.reads, 1) if operation.kind is OperationKind.OWN else _expression(operation, inside)
        )
        if operation.kind in (OperationKind.POINTWISE, OperationKind.GATHER):
            (number,) = operation.makes
            if number not in results and _is_inside(expression, readers[number]):
                inside[number] = expression
                continue
        kernels.append(_kernel(operation, expression, graph))
    return kernels


def last_readers(kernels: Sequence[Kernel]) -> dict[int, int]:
    """Number of a stored value -> place of the last kernel that reads it, or that makes it where none does."""
    return {number: at for at, kernel in enumerate(kernels) for number in (*kernel.makes, *kernel.reads)}


def peak_bytes(graph: JointGraph, kernels: Sequence[Kernel]) -> int:
    """Most that lives at once of what a graph stores; its results live to the end."""
    last, results = last_readers(kernels), {*graph.results}
    live = most = 0
    held: set[int] = set()
    for at, kernel in enumerate(kernels):
        held.update(kernel.makes)
        live += sum(graph.values[number].size_bytes for number in kernel.makes)
        most = max(most, live)
        gone = {n for n in (*kernel.makes, *kernel.reads) if n in held and last[n] == at and n not in results}
        live -= sum(graph.values[number].size_bytes for number in gone)
        held -= gone
    return most


def _expression(operation: Operation, inside: dict[int, _Expression]) -> _Expression:
    """What is read for an operation once all that is not stored is made within it."""
    reads: dict[int, int] = {}
    count = 1
    for number, size_bytes in operation.reads.items():
        found = inside.get(number)
        for source, read_bytes in ({number: size_bytes} if found is None else found.reads).items():
            reads[source] = max(reads.get(source, 0), read_bytes)
        count += 0 if found is None else found.operations
    return _Expression(reads, count)


def _is_inside(expression: _Expression, readers: Iterable[Operation]) -> bool:
    """Whether a pointwise value is made within what reads it."""
    readers = list(readers)
    if any(reader.kind is OperationKind.OWN for reader in readers) or len(expression.reads) > MOST_READ:
        return False
    if len(expression.reads) > 1 and any(reader.kind is OperationKind.GATHER for reader in readers):
        return False
    return len(readers) < 2 or (
        len(expression.reads) <= MOST_READ_TWICE and expression.operations <= MOST_OPERATIONS_TWICE
    )


def _kernel(operation: Operation, expression: _Expression, graph: JointGraph) -> Kernel:
    moved, macs, fp32_macs = operation.cost
    if operation.kind is not OperationKind.OWN:
        written = sum(graph.values[number].size_bytes for number in operation.makes)
        moved = sum(expression.reads.values()) + written
    return Kernel(operation.makes, expression.reads, macs, fp32_macs, moved, operation.place)
