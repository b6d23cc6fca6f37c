"""A YAML file that holds sections, read strictly: what is odd in it is one line naming the file."""

from __future__ import annotations

from pathlib import Path

import yaml


class ConfigError(ValueError):
    """A configuration that cannot be used; the message is one line per fault."""


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key written twice, keys that are no words, and merge keys."""


def _mapping(loader, node):
    seen = set()
    for key_node, _ in node.value:
        line = f"(line {key_node.start_mark.line + 1})"
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"a key must be a word {line}")
        if key_node.tag == "tag:yaml.org,2002:merge":
            raise ConfigError(f"<<: sections are written out, not merged {line}")
        key = loader.construct_object(key_node)
        if key in seen:
            raise ConfigError(f"{key}: the key stands twice {line}")
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_mapping(text: str, path: Path) -> dict:
    """The sections of a file's text; :class:`ConfigError` names the file."""
    try:
        values = yaml.load(text, Loader=_Loader)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: not valid YAML: nested too deeply") from error
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected sections such as data: and privacy:")
    return values
