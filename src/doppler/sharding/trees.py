"""Trees of operations: what the `paper` partitioner solves one at a time."""

from heapq import heapify, heappop, heappush

from doppler.programs.program import Program, Read

Consumers = list[list[tuple[int, Read]]]


def grow_trees(program: Program, consumers: Consumers) -> tuple[list[int], list[list[int]]]:
    """The root of each operation's tree, and each operation's children in it."""
    producers = [sorted({read.op for read in op.reads}) for op in program.ops]
    level, latest = _levels(producers, consumers)
    tree_of = [-1] * len(program.ops)
    children: list[list[int]] = [[] for _ in program.ops]
    for root in range(len(program.ops)):
        if tree_of[root] >= 0:
            continue
        tree_of[root] = root
        members = [root]
        for member in members:
            for consumer in sorted({c for c, _ in consumers[member]}):
                others = [p for p in producers[consumer] if p != member]
                if tree_of[consumer] < 0 and not any(
                    _is_downstream(p, root, tree_of, producers, level, latest) for p in others
                ):
                    tree_of[consumer] = root
                    members.append(consumer)
                    children[member].append(consumer)
    return tree_of, children


def _is_downstream(
    op: int,
    root: int,
    tree_of: list[int],
    producers: list[list[int]],
    level: list[int],
    latest: list[int],
) -> bool:
    """Whether an operation is in a tree, or depends on it; only levels below the root can."""
    stack, seen = [op], {op}
    while stack:
        op = stack.pop()
        if tree_of[op] == root:
            return True
        if level[op] > latest[root]:
            fresh = [p for p in producers[op] if p not in seen]
            seen.update(fresh)
            stack += fresh
    return False


def _levels(producers: list[list[int]], consumers: Consumers) -> tuple[list[int], list[int]]:
    """The level of each operation, and the last one it could be on given its consumers."""
    level: list[int] = []
    for inputs in producers:
        level.append(1 + max((level[p] for p in inputs), default=-1))
    latest = [min((level[c] for c, _ in readers), default=0) - 1 for readers in consumers]
    return level, latest


def downstream_first(consumers: Consumers, tree_of: list[int]) -> list[int]:
    """The roots in an order in which consumers in other trees come first.

    Trees may wait for each other in a circle; then one of that circle goes ahead of the others.
    """
    waits_for: dict[int, set[int]] = {root: set() for root in tree_of}
    for op, readers in enumerate(consumers):
        waits_for[tree_of[op]] |= {tree_of[c] for c, _ in readers} - {tree_of[op]}
    waiting: dict[int, list[int]] = {root: [] for root in waits_for}
    for root, others in waits_for.items():
        for other in others:
            waiting[other].append(root)
    ready = [root for root, others in waits_for.items() if not others]
    heapify(ready)
    order = []
    while waits_for:
        root = heappop(ready) if ready else _in_a_circle(waits_for)
        order.append(root)
        del waits_for[root]
        for other in waiting[root]:
            if other in waits_for:
                waits_for[other].discard(root)
                if not waits_for[other]:
                    heappush(ready, other)
    return order


def _in_a_circle(waits_for: dict[int, set[int]]) -> int:
    """The first root met twice, going from the lowest to the lowest that it waits for."""
    root, seen = min(waits_for), set[int]()
    while root not in seen:
        seen.add(root)
        root = min(waits_for[root])
    return root
