"""The configuration document. `document.py` opens with an index of its sections."""

from thaw.components.config.document import PRESETS, ConfigError, RunConfig, changed, from_parameter, load, to_parameter

__all__ = ["PRESETS", "ConfigError", "RunConfig", "changed", "from_parameter", "load", "to_parameter"]
