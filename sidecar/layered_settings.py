"""Where settings come from: flags win over `TITO_*`, those over the YAML file of `--config`. No state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)


class SettingsError(Exception):
    """A setting is wrong; the text names it, its value and the remedy, one line each."""


class LayeredSettings(BaseSettings):
    """Settings of a command, by where they come from."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then the YAML file, which `load_layered` names through the class's config."""
        return (init_settings, env_settings, YamlConfigSettingsSource(settings_cls))


def load_layered[T: LayeredSettings](
    kind: type[T], flags: dict[str, Any], config: Path | None, describe: Callable[[Any], str]
) -> T:
    """Settings of that kind. `describe` tells one of pydantic's error details. Raises `SettingsError`."""
    if config is not None and not config.is_file():
        raise SettingsError(f"--config is {str(config)!r}; there is no such file")
    from_file = type(kind.__name__, (kind,), {"model_config": SettingsConfigDict(yaml_file=config)})
    try:
        loaded: T = from_file(**flags)
        return loaded
    except ValidationError as error:
        raise SettingsError("\n".join(describe(detail) for detail in error.errors())) from error
    except Exception as error:  # the YAML reader's own errors
        raise SettingsError(f"--config {config}: {error}") from error
