"""The `paper` partitioner once more, as its rules are stated and without regard to speed.

Contractions are cut into exactly `parts` pieces, all else into at most that many, in powers of two.
Candidates are tried in one order and the first of the cheapest is kept: larger products first,
then with the last axis counting up slowest. A consumer joins the tree of a producer, breadth first
from the lowest operation that is in no tree, unless another of its producers is in that tree or
downstream of it. Trees are solved when all their consumers outside are; if there is none, the one
met twice when going from the lowest tree to the lowest that it waits for. In a tree, the cuts of
the two lowest children of an operation are tried jointly with its own, the others take their best.
"""

from functools import cached_property
from itertools import pairwise, product
from math import prod

from doppler.programs import Op, Program, Read

Cut = tuple[int, ...]


def naive_cuts(program: Program, parts: int, fixed: dict[int, Cut] | None = None) -> list[Cut]:
    """The cut of every operation."""
    return _Naive(program, parts, fixed or {}).solve()


def naive_trees(program: Program) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """The members of each root's tree, in the order they join, and the children of all."""
    return _Naive(program, 1, {}).trees()


def naive_candidates(op: Op, parts: int) -> list[Cut]:
    """Cuts in powers of two that divide every axis, in the order in which they are tried."""
    exponent = parts.bit_length() - 1
    exponents = [e for e in product(range(exponent + 1), repeat=len(op.join)) if sum(e) <= exponent]
    if op.is_contraction:
        exponents = [e for e in exponents if sum(e) == exponent]
    exponents.sort(key=lambda e: (-sum(e), e[::-1]))
    cuts = [tuple(2**i for i in e) for e in exponents]
    return [cut for cut in cuts if all(n % c == 0 for n, c in zip(_sizes(op), cut, strict=True))]


def _sizes(op: Op) -> list[int]:
    """Pieces an axis can have at most: half of its size where those are halves of complex ones."""
    sizes = list(op.join)
    for read in op.reads:
        for axis in read.axes:
            if axis.join is not None and axis.denominator == 2:
                sizes[axis.join] = op.join[axis.join] // 2
    return sizes


def naive_contraction_cost(op: Op, cut: Cut, parts: int) -> float:
    """Σ |in| · n / blocks_in, plus |out| / blocks_out · (n - blocks_out)."""
    if not op.is_contraction:
        return 0
    reals = 2 if "complex" in op.dtype else 1
    cost = 0.0
    for read in op.reads:
        joins = [axis.join for axis in read.axes]
        elements = reals * prod(op.join[j] for j in joins)
        cost += elements * parts / prod(cut[j] for j in joins)
    blocks = prod(cut[: len(op.shape)])
    return cost + reals * prod(op.shape) / blocks * (parts - blocks)


def naive_points(op: Op, consumer: Op, reads: list[Read], cut: Cut) -> list[set[int]]:
    """Positions of each axis of `op` at which a consumer's blocks begin and end."""
    points: list[set[int]] = [set() for _ in op.shape]
    for read in reads:
        for dim, axis in enumerate(read.axes):
            if axis.join is None:
                continue
            pieces = cut[axis.join]
            size = consumer.join[axis.join] // pieces
            for low in range(0, pieces * size, size):
                first, last = max(low, axis.begin), min(low + size, axis.end)
                if first < last:
                    for p in (first - axis.begin, last - axis.begin):
                        points[dim].add(axis.offset + p * axis.numerator // axis.denominator)
    return points


def naive_repartition_cost(op: Op, cut: Cut, needs: list[list[set[int]]]) -> float:
    """(Largest own block + largest required block) · Π of the finer cuts, unless they agree."""
    own = [set(range(0, n + 1, n // c)) for n, c in zip(op.shape, cut, strict=False)]
    required = [{0, n}.union(*(need[dim] for need in needs)) for dim, n in enumerate(op.shape)]
    if own == required:
        return 0
    reals = 2 if "complex" in op.dtype else 1
    largest = [prod(_longest(points) for points in axes) for axes in (own, required)]
    blocks = prod(max(len(a), len(b)) - 1 for a, b in zip(own, required, strict=True))
    return reals * sum(largest) * blocks


def _longest(points: set[int]) -> int:
    return max(b - a for a, b in pairwise(sorted(points)))


class _Naive:
    def __init__(self, program: Program, parts: int, fixed: dict[int, Cut]) -> None:
        self.ops, self.parts = program.ops, parts
        self.numbers = range(len(self.ops))
        self.options = [
            [fixed[i]] if i in fixed else naive_candidates(op, parts)
            for i, op in enumerate(self.ops)
        ]
        self.producers = [sorted({read.op for read in op.reads}) for op in self.ops]
        self.consumers = [[c for c in self.numbers if i in self.producers[c]] for i in self.numbers]
        self.cuts: dict[int, Cut] = {}
        self.seen_points: dict[tuple[int, int, Cut], list[set[int]]] = {}

    @cached_property
    def downstream(self) -> list[set[int]]:
        """All operations that depend on each."""
        result: list[set[int]] = [set() for _ in self.ops]
        for i in reversed(self.numbers):
            for c in self.consumers[i]:
                result[i] |= {c} | result[c]
        return result

    def trees(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """The members of each root's tree, and the children of each operation."""
        members: dict[int, list[int]] = {}
        children: dict[int, list[int]] = {i: [] for i in self.numbers}
        taken: set[int] = set()
        for root in self.numbers:
            if root in taken:
                continue
            tree = [root]
            taken.add(root)
            for member in tree:
                for consumer in self.consumers[member]:
                    others = set(self.producers[consumer]) - {member}
                    if consumer not in taken and not others & {root, *self.downstream[root]}:
                        tree.append(consumer)
                        taken.add(consumer)
                        children[member].append(consumer)
            members[root] = tree
        return members, children

    def solve(self) -> list[Cut]:
        members, children = self.trees()
        root_of = {i: root for root, tree in members.items() for i in tree}
        unsolved = sorted(members)
        while unsolved:
            waits = {
                root: sorted(
                    {root_of[c] for i in members[root] for c in self.consumers[i]}
                    & set(unsolved) - {root}
                )
                for root in unsolved
            }
            free = [root for root in unsolved if not waits[root]]
            root = free[0] if free else self.met_twice(waits)
            self.solve_tree(root, children)
            unsolved.remove(root)
        return [self.cuts[i] for i in self.numbers]

    def met_twice(self, waits: dict[int, list[int]]) -> int:
        path = [min(waits)]
        while path[-1] not in path[:-1]:
            path.append(waits[path[-1]][0])
        return path[-1]

    def solve_tree(self, root: int, children: dict[int, list[int]]) -> None:
        best: dict[int, list[tuple[float, dict[int, Cut]]]] = {}  # by operation and option

        def visit(i: int) -> None:
            kids = sorted(children[i])
            for kid in kids:
                visit(kid)
            best[i] = [self.cheapest(i, cut, kids, best) for cut in self.options[i]]

        visit(root)
        _, chosen = min(best[root], key=lambda pair: pair[0])
        self.cuts |= chosen

    def cheapest(
        self, i: int, cut: Cut, kids: list[int], best: dict[int, list[tuple[float, dict[int, Cut]]]]
    ) -> tuple[float, dict[int, Cut]]:
        """The least cost of an operation and all below it in its tree, and the cuts of those."""
        own = naive_contraction_cost(self.ops[i], cut, self.parts)
        frozen = [[min(best[kid], key=lambda pair: pair[0])] for kid in kids[2:]]
        results = []
        for below in product(*(best[kid] for kid in kids[:2]), *frozen):
            cuts = {i: cut}
            for _, chosen in below:
                cuts |= chosen
            cost = own + sum(cost for cost, _ in below) + self.repartition(i, cuts)
            results.append((cost, cuts))
        return min(results, key=lambda pair: pair[0])

    def repartition(self, i: int, cuts: dict[int, Cut]) -> float:
        known = self.cuts | cuts
        needs = [self.points(i, c, known[c]) for c in self.consumers[i] if c in known]
        return naive_repartition_cost(self.ops[i], cuts[i], needs) if needs else 0

    def points(self, i: int, consumer: int, cut: Cut) -> list[set[int]]:
        key = (i, consumer, cut)
        if key not in self.seen_points:
            reads = [read for read in self.ops[consumer].reads if read.op == i]
            self.seen_points[key] = naive_points(self.ops[i], self.ops[consumer], reads, cut)
        return self.seen_points[key]
