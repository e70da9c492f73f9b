"""``shoal``, and ``python -m shoal``: the command line."""

from __future__ import annotations


def main() -> int:
    """Run one command; its exit code. An interrupt while the command line itself is imported is no traceback, either."""
    try:
        from shoal import cli
    except KeyboardInterrupt:
        return 130
    return cli.main()


if __name__ == "__main__":
    raise SystemExit(main())
