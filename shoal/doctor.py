"""What a machine offers to shoal: versions, devices, threads, space, extras, plugins, and the command that adds what is missing.

Reads and reports; trains nothing. JAX is imported only to be asked for its devices, and may be missing or broken.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import operator
import os
import platform
import re
import shutil
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, NamedTuple

from shoal import code_cache
from shoal.plan import Plan

_NAMED = ("jax", "jaxlib", "numpy", "gymnasium", "equinox", "optax", "safetensors")  # shown even if no requirement names them
_RUNS = "runs"
_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?$")
_PYTHON = re.compile(r"""python_version\s*(<=|>=|<|>)\s*['"]([\d.]+)['"]""")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_LOW_DISK, _LOW_MEMORY = 2 * 1024**3, 1024**3  # below these a run may fail


class Requirement(NamedTuple):
    name: str
    extras: tuple[str, ...]
    at_least: str  # version; empty for any
    extra: str  # of ours or theirs, that asks for it; empty for the core


def examine() -> dict[str, Any]:
    """Everything there is to say, as plain data. ``fine``: the core can be used; ``missing``: what to type for the rest."""
    wanted = requirements()
    versions = {name: _version(name) for name in dict.fromkeys([*_NAMED, *(r.name for r in wanted if not r.extra)])}
    problems = _core_problems(wanted)
    devices = _devices()
    if devices["error"]:
        problems.append({"what": f"JAX finds no device: {devices['error']}", "command": "pip install --upgrade jax jaxlib"})
    plugins = _plugins()
    problems += [{"what": f"plugin {p['name']} ({p['value']}) fails: {p['error']}", "command": f"pip uninstall {p['package']}"}
                 for p in plugins if p["error"]]
    disk = _disk()
    if not disk["writable"]:
        problems.append({"what": f"{disk['folder']} cannot be written to", "command": "shoal train … --out DIR"})
    extras = _extras(wanted)
    missing = [{"what": f"extra {name}: {', '.join(state['missing'])}", "command": state["command"]}
               for name, state in extras.items() if not state["installed"] and name != "cuda"]
    if devices["nvidia"] and not any(device["platform"] == "gpu" for device in devices["found"]):
        missing.insert(0, {"what": "an NVIDIA driver is here, but JAX sees no GPU", "command": "pip install 'shoal[cuda]'"})
    return {"fine": not problems, "python": platform.python_version(), "platform": platform.platform(), "shoal": _own_version(),
            "versions": versions, "devices": devices, "cpu": _cpu(), "memory": _memory(), "disk": disk, "cache": _cache(),
            "extras": extras, "plugins": plugins, "problems": problems, "missing": missing}


# packages ------------------------------------------------------------------------------------------------------------


def requirements(package: str = "shoal") -> list[Requirement]:
    """What a package asks for: of ours from the project file beside it, if it runs from its sources; else from its metadata."""
    source = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if package == "shoal" and source.is_file():
        project = tomllib.loads(source.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "shoal":
            groups = {"": project.get("dependencies", []), **project.get("optional-dependencies", {})}
            return [_parse(text)._replace(extra=extra) for extra, texts in groups.items() for text in texts]
    try:
        return [_parse(text) for text in importlib.metadata.requires(package) or [] if _for_this_python(text)]
    except PackageNotFoundError:
        return []


def _parse(text: str) -> Requirement:
    found = _REQUIREMENT.match(text)
    if found is None:
        return Requirement(text, (), "", "")
    name, extras, versions, marker = (part or "" for part in found.groups())
    least = re.search(r">=\s*([\d.]+)", versions)
    extra = _EXTRA.search(marker)
    inner = tuple(part.strip() for part in extras.split(",") if part.strip())
    return Requirement(name, inner, least[1] if least else "", extra[1] if extra else "")


def _for_this_python(text: str) -> bool:
    """Whether a requirement's bounds on Python's version, if it has any, hold here."""
    holds = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
    here = _numbers(".".join(platform.python_version_tuple()[:2]))
    return all(holds[sign](here, _numbers(version)) for sign, version in _PYTHON.findall(text))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except PackageNotFoundError:
        return None


def _own_version() -> str:
    import shoal

    return _version("shoal") or shoal.__version__


def _satisfied(wanted: Requirement) -> bool:
    """Whether a package is installed, new enough, with what its own extras ask for."""
    version = _version(wanted.name)
    if version is None or (wanted.at_least and _numbers(version) < _numbers(wanted.at_least)):
        return False
    inner = [r for r in requirements(wanted.name) if r.extra in wanted.extras] if wanted.extras else []
    return all(_version(r.name) is not None for r in inner)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0].split("rc")[0]))


def _core_problems(wanted: list[Requirement]) -> list[dict[str, str]]:
    problems = []
    for each in (r for r in wanted if not r.extra and not _satisfied(r)):
        least = f">={each.at_least}" if each.at_least else ""
        have = _version(each.name)
        what = f"{each.name} {have} is too old: {least} is needed" if have else f"{each.name} is not installed"
        problems.append({"what": what, "command": f"pip install '{each.name}{least}'"})
    return problems


def _extras(wanted: list[Requirement]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for each in (r for r in wanted if r.extra):
        state = found.setdefault(each.extra, {"installed": True, "packages": {}, "missing": [],
                                              "command": f"pip install 'shoal[{each.extra}]'"})
        state["packages"][each.name] = _version(each.name)
        if not _satisfied(each):
            state["installed"] = False
            state["missing"].append(each.name + (f"[{','.join(each.extras)}]" if each.extras else ""))
    return found


def _plugins() -> list[dict[str, str]]:
    """Installed plugins, each imported as a run would."""
    found = []
    for point in importlib.metadata.entry_points(group="shoal.plugins"):
        error = ""
        try:
            point.load()
        except Exception as failure:  # a plugin is the user's code and may raise anything
            error = f"{type(failure).__name__}: {failure}"
        package = point.dist.name if point.dist else point.value.split(".")[0]
        found.append({"name": point.name, "value": point.value, "package": package, "error": error})
    return found


# the machine ---------------------------------------------------------------------------------------------------------


def _devices() -> dict[str, Any]:
    nvidia = shutil.which("nvidia-smi") is not None
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # to ask is not to take the memory
    try:
        import jax

        found = [{"platform": device.platform, "kind": device.device_kind} for device in jax.devices()]
    except Exception as error:  # a broken installation may raise anything, and is what is asked about
        return {"found": [], "error": (str(error).splitlines() or [type(error).__name__])[0], "nvidia": nvidia}
    return {"found": found, "error": "", "nvidia": nvidia}


def _cpu() -> dict[str, Any]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"cores": os.cpu_count() or 1, "usable": usable, "threads": Plan.threads}


def _memory() -> dict[str, int | None]:
    """Bytes of memory and what is free of it; a container's limit counts where it is lower."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return {"total": None, "free": None}
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max": no limit
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return {"total": total, "free": min(free, total)}


def _disk() -> dict[str, Any]:
    folder = Path(_RUNS).absolute()
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    return {"folder": str(folder), "free": shutil.disk_usage(there).free, "writable": os.access(there, os.W_OK | os.X_OK)}


def _cache() -> dict[str, Any]:
    folder = code_cache.folder("xla")
    if folder is None:
        off = os.environ.get("SHOAL_CACHE") == "off"
        return {"folder": None, "files": 0, "bytes": 0, "state": "off (SHOAL_CACHE)" if off else "not usable: nothing is kept"}
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return {"folder": str(folder), "files": len(sizes), "bytes": sum(sizes), "state": "in use"}


# in words ------------------------------------------------------------------------------------------------------------


def lines(report: dict[str, Any]) -> list[str]:
    """The report for a reader: what there is, then what is missing and what to type, then the verdict."""
    said = [f"shoal {report['shoal']}, Python {report['python']}, {report['platform']}", "", "packages"]
    said += [f"  {name:<14}{version or 'not installed'}" for name, version in report["versions"].items()]
    found, cpu, memory, disk, cache = (report[name] for name in ("devices", "cpu", "memory", "disk", "cache"))
    kinds = [f"{device['platform']}: {device['kind']}" for device in found["found"]] or [f"none ({found['error']})"]
    free = "unknown" if memory["total"] is None else f"{_size(memory['total'])}, {_size(memory['free'])} free"
    low = " (little)" if memory["free"] is not None and memory["free"] < _LOW_MEMORY else ""
    said += ["", "machine", f"  {'devices':<14}{'; '.join(kinds)}",
             f"  {'cores':<14}{cpu['cores']}, {cpu['usable']} of them usable; XLA uses {cpu['threads']} (--threads)",
             f"  {'memory':<14}{free}{low}",
             f"  {'disk':<14}{_size(disk['free'])} free for {disk['folder']}{' (little)' if disk['free'] < _LOW_DISK else ''}",
             f"  {'cache':<14}{cache['state']}" + (f": {cache['folder']}, {cache['files']} files, {_size(cache['bytes'])}"
                                                  if cache["folder"] else ""), "", "extras"]
    for name, state in report["extras"].items():
        packages = ", ".join(f"{package} {version}" for package, version in state["packages"].items())
        said.append(f"  {name:<14}{packages if state['installed'] else state['command']}")
    plugins = [f"  {p['name']:<14}{p['value']}{': ' + p['error'] if p['error'] else ''}" for p in report["plugins"]]
    said += ["", "plugins", *(plugins or ["  none installed"])]
    said += ["", *(f"{'FAULT' if kind == 'problems' else 'note'}  {item['what']} → {item['command']}"
                   for kind in ("problems", "missing") for item in report[kind] if not item["what"].startswith("extra "))]
    verdict = "the core is fine" if report["fine"] else f"the core is not fine: {len(report['problems'])} to mend"
    absent = [name for name, state in report["extras"].items() if not state["installed"]]
    return [*said, verdict + (f"; extras not installed: {', '.join(absent)}" if absent else "")]


def _size(num_bytes: int) -> str:
    if num_bytes < 1024:
        return f"{num_bytes} bytes"
    power = min(4, (num_bytes.bit_length() - 1) // 10)
    return f"{num_bytes / 1024**power:.1f} {'KMGT'[power - 1]}iB"
