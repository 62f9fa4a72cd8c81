"""What both kinds of stores do with prefixes: sequences share them, and they may be kept and evicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.replay.prefixes import Prefixes

if TYPE_CHECKING:
    from vmtool.replay.account import Account
    from vmtool.replay.prefixes import Node
    from vmtool.replay.sequence import RunningSequence


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
        path = seq.path
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
