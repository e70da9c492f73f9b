"""``shoal``, and ``python -m shoal``: the command line."""

from __future__ import annotations

import signal


def main() -> int:
    """Run one command; its exit code. Interrupts show no traceback while the command line is imported, nor when all is done."""
    try:
        from shoal import cli

        code = cli.main()
    except KeyboardInterrupt:
        code = 130
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is left to do is to clean up
    return code


if __name__ == "__main__":
    raise SystemExit(main())
