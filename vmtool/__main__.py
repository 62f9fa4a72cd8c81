"""The entry point of ``vmtool``, which reports even an error while loading in one line."""

# Both are loaded already. An interruption before entry() is a traceback, so nothing else is.
import os
import sys

#: Objects made before the collector looks for cycles. What is made while a command loads stays, so
#: looking through it every 700 objects was a twentieth of a start and found nothing.
_COLLECT_AFTER = 100_000
#: Given up to say that memory ran out, and why: what says it needs some. (It is never touched.)
_BALLAST_BYTES = 2 << 20
_UNEXPLAINED = """\
vmtool: error: this process cannot get more memory
  hint: raise `ulimit -v` or `ulimit -d`, whichever is set, and run again
"""


def entry() -> None:
    """Run the command line; Ctrl-C and a lack of memory end it with one line also while it loads."""
    loaded = False
    ballast: bytes | None = None
    try:
        ballast = bytes(_BALLAST_BYTES)
        import gc  # noqa: PLC0415 - guarded too

        gc.set_threshold(_COLLECT_AFTER)
        from vmtool.cli.app import entry as enter  # noqa: PLC0415 - this is what is guarded

        loaded = True
        enter()
    except KeyboardInterrupt:
        sys.exit(130)  # vmtool.errors.ExitCode.INTERRUPTED, which may not be loaded yet
    except Exception as error:
        # Python 3.11 has a RuntimeError of its own for what a class's __set_name__ raises.
        if isinstance(error.__cause__, KeyboardInterrupt):
            sys.exit(130)
        ballast = None  # noqa: F841 - freed
        try:
            from vmtool.no_memory import explain  # noqa: PLC0415 - loaded if possible

            words = explain(error, loaded=loaded)
        except Exception:  # noqa: BLE001 - whatever a lack of memory raises
            words = _UNEXPLAINED
        if not words:
            raise
        os.write(2, words.encode("ascii", "replace"))
        os._exit(1)  # an ordinary exit would try to run and to write more
    finally:
        # CPython ends by SIGINT, whatever the exit code, if an interruption left the last exec() of
        # a string; every dataclass is made with one.
        try:  # noqa: SIM105 - see above
            exec("")  # noqa: S102 - it runs nothing
        except (MemoryError, SystemError):
            pass


if __name__ == "__main__":
    entry()
