"""Which requirements of this distribution are met, from the metadata of what is installed."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from packaging.requirements import Requirement

DISTRIBUTION = "beir-cocodr"


def extras() -> list[str]:
    """The extras of this distribution; none where it runs from a folder without being installed."""
    try:
        return metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return []


def unmet(extra: str | None) -> list[str]:
    """The requirements of an extra, or of the core with None, that are not installed or too old."""
    missing = []
    for requirement in _requirements(extra):
        found = _version(requirement.name)
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            missing.append(f"{requirement.name}{requirement.specifier}")
    return missing


def installed() -> dict[str, str]:
    """Package to version, of this distribution and all that it names, where installed."""
    names = {DISTRIBUTION} | {
        requirement.name for extra in (None, *extras()) for requirement in _requirements(extra)
    }
    versions = {name: _version(name) for name in sorted(names)}
    return {name: found for name, found in versions.items() if found is not None}


@cache
def _requirements(extra: str | None) -> tuple[Requirement, ...]:
    found: list[Requirement] = []
    for line in _declared():
        requirement = Requirement(line)
        marker = requirement.marker
        core = marker is None or marker.evaluate({"extra": ""})
        if core if extra is None else (not core and marker is not None and marker.evaluate({"extra": extra})):
            # An extra may name others of this distribution.
            if requirement.name == DISTRIBUTION:
                for other in sorted(requirement.extras):
                    found += _requirements(other)
            else:
                found.append(requirement)
    return tuple(found)


def _declared() -> list[str]:
    try:
        return requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
