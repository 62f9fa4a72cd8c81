"""Which prefixes the running sequences have in common: a tree of named blocks, counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.kv.growth import Run


class Node:
    """One block of a prefix, after all those above it.

    Attributes:
        parent: The block before, or ``None`` for the root.
        name: Its name there.
        users: Running sequences that have it.
        arena: The number of the reservation that holds its memory, where it has one.
        blocks: The blocks that hold it, for each class, where it has some.
    """

    __slots__ = ("arena", "blocks", "children", "name", "parent", "users")

    def __init__(self, parent: Node | None, name: int) -> None:
        self.parent = parent
        self.name = name
        self.users = 0
        self.children: dict[int, Node] = {}
        self.arena = 0
        self.blocks: list[list[Run]] = []


class Prefixes:
    """The prefixes in use; a block that nobody uses any more is gone."""

    def __init__(self) -> None:
        self._root = Node(None, 0)

    @property
    def empty(self) -> bool:
        """Whether nobody uses any."""
        return not self._root.children

    def enter(self, names: Sequence[int]) -> tuple[list[Node], int]:
        """Count one more user of the prefix *names*.

        Returns:
            Its blocks, and how many of the first of them others had already.
        """
        node = self._root
        path = []
        known = 0
        for name in names:
            child = node.children.get(name)
            if child is None:
                child = node.children[name] = Node(node, name)
            else:
                known += 1
            child.users += 1
            path.append(child)
            node = child
        return path, known

    def leave(self, path: Sequence[Node]) -> int:
        """Count one user less of the blocks of *path*.

        Returns:
            How many of the first of them are still in use.
        """
        kept = len(path)
        for node in reversed(path):
            node.users -= 1
            if not node.users and node.parent is not None:
                del node.parent.children[node.name]
                kept -= 1
        return kept
