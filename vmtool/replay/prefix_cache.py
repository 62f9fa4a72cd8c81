"""The prefixes that sequences share: a tree of named blocks, and how stores keep and evict them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.replay.account import Account
    from vmtool.replay.sequence import RunningSequence


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


@dataclass(frozen=True, slots=True)
class Hit:
    """What an admission found of its prefix.

    Attributes:
        path: The blocks of the prefix.
        in_use: How many of the first of them others use.
        resident: How many of the first of them have memory: in use or kept.
        reused_bytes: Bytes that were kept.
    """

    path: list[Node]
    in_use: int
    resident: int
    reused_bytes: int


_NO_HIT: Final = Hit([], 0, 0, 0)


class PrefixStore:
    """Shared and kept prefixes in an account; the base of both kinds of stores.

    Args:
        account: The byte totals.
        prefix_tokens: Tokens of a named block.
        share: Whether prefixes are shared.
        keep: Whether a prefix without users is kept while there is room.
    """

    def __init__(self, account: Account, *, prefix_tokens: int, share: bool, keep: bool) -> None:
        self._account = account
        self._prefix_tokens = prefix_tokens
        self._share = share
        self._keep = keep
        self._prefixes = Prefixes(keep=keep)

    def close(self) -> None:
        """Evict every kept prefix."""
        while self._evict():
            pass

    @property
    def empty(self) -> bool:
        """Whether no prefix is used or kept."""
        return self._prefixes.empty

    def _prefix_bytes(self, blocks: int) -> tuple[int, int]:
        """Return what a prefix of *blocks* commits, and the bytes of tokens in that."""
        raise NotImplementedError

    def _free_node(self, node: Node) -> int:
        """Release the memory of *node*, and return its bytes."""
        raise NotImplementedError

    def _enter(self, seq: RunningSequence) -> Hit:
        """Make *seq* a user of its prefix; :meth:`_take` or :meth:`_cancel` must follow."""
        if not self._share or not seq.request.prefix:
            return _NO_HIT
        path, in_use, resident = self._prefixes.enter(self._names(seq))
        reused = 0
        if resident > in_use:
            reused = self._prefix_bytes(resident)[0] - self._prefix_bytes(in_use)[0]
            self._account.keep(-reused)
        return Hit(path, in_use, resident, reused)

    def _names(self, seq: RunningSequence) -> tuple[int, ...]:
        """Return the names of the blocks of its prefix that its prompt fills.

        The last named block may be partly filled; what else it holds is unknown.
        """
        request = seq.request
        return request.prefix[: request.prompt_tokens // self._prefix_tokens]

    def _in_use(self, seq: RunningSequence) -> int:
        """Return how many of the first blocks of the prefix of *seq* others have."""
        if not self._share or not seq.request.prefix:
            return 0
        return self._prefixes.depth(self._names(seq))

    def _cancel(self, hit: Hit) -> None:
        """Undo :meth:`_enter`."""
        if hit.path:
            self._account.keep(hit.reused_bytes)
            self._prefixes.leave(hit.path, hit.resident)

    def _take(self, seq: RunningSequence, hit: Hit) -> None:
        """Note that *seq*, now admitted, has the prefix."""
        seq.path = hit.path
        seq.hit_tokens = hit.resident * self._prefix_tokens
        if not hit.path:
            seq.shared_bytes = seq.shared_live = 0
            return
        self._account.kept_reused += hit.reused_bytes
        seq.shared_bytes, seq.shared_live = self._prefix_bytes(len(hit.path))
        self._account.share(*self._prefix_bytes(hit.in_use))

    def _leave(self, seq: RunningSequence) -> list[Node]:
        """End the use of its prefix by *seq*; return the nodes to free, the last first."""
        path: list[Node] = seq.path
        if not path:
            return []
        used = self._prefixes.leave(path, len(path))
        self._account.unshare(*self._prefix_bytes(used))
        gone = path[used:]
        seq.path, seq.shared_bytes, seq.shared_live = [], 0, 0
        if self._keep:
            nbytes = self._prefix_bytes(len(path))[0] - self._prefix_bytes(used)[0]
            self._account.keep(nbytes)
            return []
        gone.reverse()
        return gone

    def _evict(self) -> bool:
        """Free the block that is unused for longest; ``False`` if none is kept."""
        node = self._prefixes.evict()
        if node is None:
            return False
        self._account.evict(self._free_node(node))
        return True
