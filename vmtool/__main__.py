"""The entry point of ``vmtool``, which reports even an error while loading in one line."""

# Both are loaded already. An interruption before entry() is a traceback, so nothing else is.
import os
import sys

#: Objects made before the collector looks for cycles. What is made while a command loads stays, so
#: looking through it every 700 objects was a twentieth of a start and found nothing.
_COLLECT_AFTER = 100_000
#: Given up to say that memory ran out, and why: what says it needs some. (It is never touched.)
_BALLAST_BYTES = 2 << 20
#: EPERM and ENOSYS, with which a sandbox answers calls that it does not allow.
_REFUSALS = (1, 38)
_SANDBOX = (
    "a security policy does not allow it (seccomp, SELinux or a sandbox)",
    "check the seccomp profile of the container, or run outside the container",
)


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
        words = _explain(error, loaded=loaded)
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


def _explain(error: BaseException, *, loaded: bool) -> str:
    """Return lines for a lack of memory, or a refusal while vmtool was loaded; empty for others."""
    refused = isinstance(error, OSError) and error.errno in _REFUSALS and not loaded
    first = "this process cannot get more memory" if loaded else "not enough memory to load vmtool"
    cause: str | None
    try:
        from vmtool.no_memory import is_no_memory, why_no_memory  # noqa: PLC0415 - loaded if possible

        if refused:
            first = (
                f"vmtool cannot be loaded: a system call failed in {_last_function(error)}: {error}"
            )
            cause, hint = _SANDBOX
        elif is_no_memory(error):
            cause, hint = why_no_memory()
        else:
            return ""
    except Exception:  # noqa: BLE001 - whatever a lack of memory raises
        cause, hint = (
            None,
            "raise `ulimit -v` or `ulimit -d`, whichever is set, and run again",
        )
    told = f"vmtool: error: {first}\n" + (f"  cause: {cause}\n" if cause else "")
    return f"{told}  hint: {hint}\n"


def _last_function(error: BaseException) -> str:
    """Return the function that raised *error*, with its module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    frame = None if trace is None else trace.tb_frame
    return "" if frame is None else f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"


if __name__ == "__main__":
    entry()
