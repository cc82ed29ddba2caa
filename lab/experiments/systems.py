"""The systems that experiments compare, by name. This is the only module of the lab that knows which networks exist.

mqt                    a model of the registry, trained by the recipe: a network of the family, seasonal-naive, auto,
                       mean_of(mqt, 3), or a registered class of your own
mqt@paper              a network with a preset instead of the recipe
mqt-unforked@paper     the same, trained on trajectories that are drawn one by one, in the paper's tasks
"""

import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from mqcast import models
from mqcast.errors import ConfigError
from mqcast.settings import FAMILY
from mqcast.settings.merge import preset_layers

NETWORKS = tuple(FAMILY)
BASELINE = "mqcnn"
SEASONAL_NAIVE, ORACLE = models.BASELINE, "oracle"
UNFORKED, PRESET = "-unforked", "@"


@dataclass(frozen=True)
class System:
    """What a name stands for: a model of the registry, and a preset if it is not trained by the recipe."""

    name: str
    model: str
    preset: str | None = None
    is_forked: bool = True

    @classmethod
    def parse(cls, name: str) -> "System":
        system, _, preset = name.partition(PRESET)
        model = system.removesuffix(UNFORKED)
        if model not in NETWORKS:
            if preset:
                raise ConfigError(f"{name}: only networks have presets; there are {', '.join(NETWORKS)}")
            models.get(name)
            return cls(name, name)
        if preset or name.endswith(PRESET):
            preset_layers(preset)  # raises if there is no such preset
        elif system != model:
            raise ConfigError(f"the recipe decides how {model} is trained; write {name}{PRESET}paper, or {model}")
        return cls(name, model, preset or None, system == model)

    @property
    def is_network(self) -> bool:
        return self.model in NETWORKS


def import_models(module: str) -> None:
    """Import a Python file, or a module by its dotted name, so that it registers its models."""
    if not module.endswith(".py"):
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            raise ConfigError(f"--module {module}: {error}; give a Python file, or a module on the path") from None
        return
    path = Path(module).resolve()
    name = f"lab_models_{path.stem}"  # shadows no other module
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"--module {module}: there is no such file; give a Python file that registers a model")
    sys.modules[name] = made = module_from_spec(spec)
    spec.loader.exec_module(made)
