"""What a conformance check says, and how it is gathered: at most one finding per check, the first fault of each. No JAX here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from shoal.errors import ShoalError


class Finding(NamedTuple):
    """One check. ``ok`` with a consequence is a note: no defect, but good to know."""

    check: str
    ok: bool
    detail: str  # what was seen
    consequence: str  # what shoal does about it; empty where there is nothing to do


class Entry(NamedTuple):
    """A check as its table knows it."""

    fine: str  # what conforming means
    consequence: str  # what shoal does where it does not conform


class NonConforming(ShoalError):
    """Raised where findings were asked to be right and are not; its text is one line per defect."""


class Log:
    """Collects findings in the order of a table of checks."""

    def __init__(self, table: Mapping[str, Entry]):
        self._table = table
        self._found: dict[str, Finding] = {}

    def tried(self, *checks: str) -> None:
        """These were looked at; unless a fault turns up, they conform."""
        for check in checks:
            self._found.setdefault(check, Finding(check, True, self._table[check].fine, ""))

    def fault(self, check: str, detail: str, consequence: str = "") -> None:
        """A defect; of several in one check the first is kept."""
        if self._found.get(check, Finding(check, True, "", "")).ok:
            consequence = consequence or self._table[check].consequence
            self._found[check] = Finding(check, False, " ".join(detail.split())[:300], consequence)

    def note(self, check: str, detail: str, consequence: str) -> None:
        """No defect, but good to know."""
        if self._found.get(check, Finding(check, True, "", "")).ok:
            self._found[check] = Finding(check, True, " ".join(detail.split())[:300], consequence)

    @property
    def faulty(self) -> bool:
        """Whether anything failed so far."""
        return not conforms(self.findings())

    def failed(self, check: str) -> bool:
        return check in self._found and not self._found[check].ok

    def findings(self) -> list[Finding]:
        return [self._found[check] for check in self._table if check in self._found]


def say_limit(log: Log, limit: int, by_name: bool) -> None:
    """A limit that is declared and not kept is no defect where shoal counts."""
    if by_name:
        log.note("limit", f"shoal ends episodes after the declared {limit} steps", "")
    else:
        log.note("limit", f"declares {limit} steps and does not end there by itself",
                 "shoal counts for environments made by name; an object given as it is must count itself")


def conforms(findings: list[Finding]) -> bool:
    return all(finding.ok for finding in findings)


def demand(name: str, findings: list[Finding]) -> None:
    """Refuse findings with a defect among them."""
    if not conforms(findings):
        faults = [f"{f.check}: {f.detail}" for f in findings if not f.ok]
        raise NonConforming(f"{name} does not conform\n" + "\n".join(faults))


def lines(name: str, findings: list[Finding]) -> list[str]:
    """One line per finding and a last one with the sum."""
    width = max(len(finding.check) for finding in findings) + 2
    said = []
    for finding in findings:
        mark = "ok" if finding.ok and not finding.consequence else "note" if finding.ok else "FAULT"
        tail = f" → {finding.consequence}" if finding.consequence else ""
        said.append(f"{mark:<7}{finding.check:<{width}}{finding.detail}{tail}")
    faults = sum(not finding.ok for finding in findings)
    notes = sum(finding.ok and bool(finding.consequence) for finding in findings)
    verdict = "conforms" if not faults else f"has {faults} defect{'s' if faults > 1 else ''}"
    return [*said, f"{name} {verdict}: {len(findings)} checks, {notes} note{'' if notes == 1 else 's'}"]


def as_json(name: str, findings: list[Finding]) -> str:
    return json.dumps({"name": name, "conforms": conforms(findings), "findings": [f._asdict() for f in findings]})
