"""Names of plugins in settings: what a user wrote as `file.py:Class` becomes a name, and what a run has from
plugins is recorded, and compared when the run or its model is opened again."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from etymon import plugins
from etymon.config import strict
from etymon.errors import EtymonError
from etymon.plugins import PluginRecord
from etymon.registry import TABLES, add_value, load_plugin, recorded_plugins, registered_plugins

logger = logging.getLogger("etymon")
_noted: set[str] = set()
"""Notes about changed plugins that were shown: a run opens its model many times."""


def resolve(kind: str, text: str) -> str:
    """The name for what a user has written: `file.py:Class` is opened and registered, a name stays."""
    reference = plugins.REFERENCE.fullmatch(text)
    if reference is None:
        return text
    # Whoever calls this has it from the user, never from a folder.
    source = reference["source"]
    load_plugin(source)
    value = plugins.object_of(source, reference["object"])
    for registered in registered_plugins.values():
        if registered.kind == kind and registered.value is value:
            return registered.name
    module = plugins.open_plugin(source)
    return add_value(kind, value, plugins.origin_of(vars(module)))


FIELDS = {
    "family": "family",
    "objective": "objective",
    "task": "task",
    "masking": "masking",
    "tokenizer": "tokenizer",
    "source_tokenizer": "tokenizer",
    "kind": "tokenizer",
    "metrics": "metric",
    "metric": "metric",
    "optimiser": "optimiser",
    "schedule": "schedule",
    "loggers": "logger",
    "logger": "logger",
}
"""Settings whose values are names of a kind."""


def resolve_setting(field: str, value: Any) -> Any:
    """A setting that the user has given, with names for what was named as `file.py:Class`."""
    if field == "words":
        name_word_functions(value)
    kind = FIELDS.get(field)
    if kind is None or not isinstance(value, str | list | tuple):
        return value
    if not isinstance(value, str):
        return type(value)(resolve_setting(field, each) for each in value)
    if kind == "objective" and "=" in value:  # a mixture: masked=0.7,file.py:Class=0.3
        parts = (part.rpartition("=") for part in value.split(","))
        return ",".join(f"{resolve(kind, part)}={share}" for part, _, share in parts)
    return resolve(kind, value)


def name_word_functions(value: Any) -> None:
    """Remembers that the user has named the modules of `--words module:function` (`zh=module:function`)."""
    for way in [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else ():
        source, colon, _ = str(way).rpartition("=")[2].rpartition(":")
        if colon and source:
            plugins.name_plugin(source)


def resolve_override(override: str) -> str:
    """The same of `options.masking=file.py:function` and of a grid's `objective=masked,file.py:Class`."""
    key, _, value = override.partition("=")
    field = key.rpartition(".")[2].strip()
    if field == "words":
        name_word_functions(re.findall(r"[^\s,\[\]'\"]+", value))
    if field not in FIELDS or not plugins.REFERENCE.search(value):
        return override
    values = [value] if "=" in value else value.split(",")  # of a grid, several
    return f"{key}={','.join(resolve_setting(field, each) for each in values)}"


# ------------------------------------------------------------ what is recorded


def records_in(tree: Any) -> list[PluginRecord]:
    """The plugins whose names stand in the settings of a run, wherever a name of their kind is expected."""
    records: dict[PluginRecord, None] = {}

    def look(field: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, part in value.items():
                # `optimiser: {name: ...}`, as `training` has it, is the same as `optimiser: ...`.
                look(field if key == "name" and field in FIELDS else str(key), part)
        elif isinstance(value, list | tuple):
            for part in value:
                look(field, part)
        elif isinstance(value, str) and field in FIELDS:
            for part in value.split(","):
                registered = registered_plugins.get((FIELDS[field], part.rpartition("=")[0] or part))
                if registered is not None:
                    records[registered.record] = None

    # By keys, not by all words: a text may be called like an objective.
    look("", tree)
    return [*records]


def record_of(kind: str, name: str) -> PluginRecord | None:
    """The record of what a plugin has registered; None of what is built in."""
    registered = registered_plugins.get((kind, name))
    return None if registered is None else registered.record


def read_records(entries: Any, where: str) -> list[PluginRecord]:
    """Records as a folder has them, checked; nothing is opened."""
    if not isinstance(entries, list):
        raise EtymonError(f"{where} is damaged: plugins is no list")
    return [strict(PluginRecord, entry, where) for entry in entries]


def compare_records(records: Iterable[PluginRecord], where: str) -> Iterator[str]:
    """For every plugin that a folder was made with and that has changed since, a line that says so. From now
    on, messages about names that are missing say which plugin had them."""
    for record in records:
        recorded_plugins[record.kind, record.name] = (record, where)
        # Of a notebook's class there may be no digest: nothing can be said of it.
        now = record_of(record.kind, record.name)
        if now is not None and record.digest and now.digest != record.digest:
            yield (
                f"the plugin {now.source} is not as it was when {where} was made with its {record.kind} "
                f"{record.name!r} ({record.digest} then, {now.digest or 'unknown'} now)"
            )


def note_records(records: Iterable[PluginRecord], where: str) -> None:
    """The same for a folder that is only read: what has changed is a note."""
    for line in compare_records(records, where):
        if line not in _noted:
            _noted.add(line)
            logger.warning(line)


def require_records(records: Iterable[PluginRecord], where: str, *, changed: bool) -> None:
    """Refuses a run whose plugins are not here, or have changed and may not (`changed`)."""
    # All that are missing before any that has changed: the first command should be the last mistake.
    records = list(records)
    for record in records:
        if record.kind in TABLES and record.name not in TABLES[record.kind]:
            raise EtymonError(
                f"{where} was made with the {record.kind} {record.name!r} of the plugin {record.source}, and "
                f"a folder brings no code: {record.advice}"
            )
    for line in compare_records(records, where):
        if not changed:
            raise EtymonError(
                f"{line}, and a run goes on as it began: bring it back, or say --changed-plugins to go on "
                "with it as it is"
            )
        logger.warning(line)


def as_plain(records: Iterable[PluginRecord]) -> list[dict[str, str]]:
    return [asdict(record) for record in records]
