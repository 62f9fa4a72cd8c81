"""Which prefixes sequences share: a tree of named blocks with user counts, kept until evicted."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Node:
    """One block of a prefix, after all blocks above it.

    Attributes:
        parent: The block before, or ``None`` for the root.
        name: Its name there.
        depth: How many blocks are before it.
        users: Running sequences that use it.
        arena: The number of the reservation that holds its memory, where it has one.
        blocks: The blocks that hold it, for each class, where it has some.
    """

    __slots__ = ("arena", "blocks", "children", "depth", "name", "parent", "users")

    def __init__(self, parent: Node | None, name: int) -> None:
        self.parent = parent
        self.name = name
        self.depth: int = 0 if parent is None or parent.parent is None else parent.depth + 1
        self.users = 0
        self.children: dict[int, Node] = {}
        self.arena = 0
        self.blocks: list[Any] = []


class Prefixes:
    """The tree of prefixes; a block without users is removed, or *kept* until it is evicted.

    Args:
        keep: Whether such blocks are kept.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._root = Node(None, 0)
        self._keep = keep
        # Kept blocks, the longest unused first. A block is never unused for longer than the one
        # after it, and comes later if for as long, so that the first has no other after it.
        # A plain dict would look for its first entry among all that were evicted before.
        self._kept: OrderedDict[Node, None] = OrderedDict()

    @property
    def empty(self) -> bool:
        """Whether no block is used or kept."""
        return not self._root.children

    def enter(self, names: Sequence[int]) -> tuple[list[Node], int, int]:
        """Count one more user of the prefix *names*.

        Returns:
            Its blocks, how many of the first of them others use, and how many are resident: those
            and the kept ones.
        """
        node = self._root
        path = []
        in_use = resident = 0
        for name in names:
            child = node.children.get(name)
            if child is None:
                child = node.children[name] = Node(node, name)
            else:
                resident += 1
                if child.users:
                    in_use += 1
                else:
                    del self._kept[child]
            child.users += 1
            path.append(child)
            node = child
        return path, in_use, resident

    def depth(self, names: Sequence[int]) -> int:
        """Return how many of the first blocks of the prefix *names* are there."""
        node, depth = self._root, 0
        for name in names:
            child = node.children.get(name)
            if child is None:
                break
            node = child
            depth += 1
        return depth

    def leave(self, path: Sequence[Node], resident: int) -> int:
        """Count one user less of the blocks of *path*, the first *resident* of which have memory.

        Returns:
            How many of the first of them are still in use.
        """
        used = len(path)
        for node in reversed(path):
            node.users -= 1
            if node.users:
                continue
            used -= 1
            if self._keep and node.depth < resident:
                self._kept[node] = None
            else:
                self._remove(node)
        return used

    def evict(self) -> Node | None:
        """Remove the block that is unused for longest; ``None`` if none is kept."""
        if not self._kept:
            return None
        node, _ = self._kept.popitem(last=False)
        self._remove(node)
        return node

    def _remove(self, node: Node) -> None:
        if node.parent is not None:
            del node.parent.children[node.name]
