"""``python -m vmtool`` and the ``vmtool`` program: the command line, guarded while it is loaded."""

# Both are loaded already. An interruption before entry() is a traceback, so nothing else is.
import os
import sys

#: Objects made before the collector looks for cycles. What is made while a command loads stays, so
#: looking through it every 700 objects was a twentieth of a start and found nothing.
_COLLECT_AFTER = 100_000


def entry() -> None:
    """Run the command line; Ctrl-C and a lack of memory end it with one line also while it loads."""
    try:
        import gc  # noqa: PLC0415 - guarded too

        gc.set_threshold(_COLLECT_AFTER)
        from vmtool.cli.app import entry as enter  # noqa: PLC0415 - this is what is guarded

        enter()
    except KeyboardInterrupt:
        sys.exit(130)  # vmtool.errors.ExitCode.INTERRUPTED, which may not be loaded yet
    except Exception as error:
        # Python 3.11 has a RuntimeError of its own for what a class's __set_name__ raises.
        if isinstance(error.__cause__, KeyboardInterrupt):
            sys.exit(130)
        words = _explain(error)
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


def _explain(error: BaseException) -> str:
    """Return lines for a lack of memory; empty for another error."""
    first = "vmtool: error: not enough memory to load vmtool\n"
    try:
        from vmtool.errors import is_no_memory, why_no_memory  # noqa: PLC0415 - loaded if possible

        if not is_no_memory(error):
            return ""
        cause, hint = why_no_memory()
    except Exception:  # noqa: BLE001 - whatever a lack of memory raises
        return f"{first}  hint: raise RLIMIT_AS and RLIMIT_DATA (ulimit -v, ulimit -d)\n"
    return f"{first}  cause: {cause}\n  hint: {hint}\n" if cause else f"{first}  hint: {hint}\n"


if __name__ == "__main__":
    entry()
