"""The base of this package's modules in sentence-transformers models: how they are saved."""

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Self

from sentence_transformers.base.modules import Module

from beir_cocodr.errors import explained
from beir_cocodr.models.checkpoints.hub import places_in


class SavedModule(Module):
    """A module that is saved as the arguments of its constructor and its weights."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Declare the parameters of the constructor as the host's ``config_keys``."""
        super().__init_subclass__(**kwargs)
        parameters = list(signature(cls.__init__).parameters)
        cls.config_keys = parameters[1:]

    def save(
        self,
        output_path: str,
        *args: object,
        safe_serialization: bool = True,
        **kwargs: object,
    ) -> None:
        """Save the module to a folder; the host calls it."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        *args: object,
        **kwargs: object,
    ) -> Self:
        """Load the module of a model; the host calls it."""
        places = places_in(kwargs)
        if "subfolder" in kwargs:
            places["subfolder"] = kwargs["subfolder"]
        settings = cls.load_config(model_name_or_path, **places)
        module = cls.of_settings(settings)
        cls.load_torch_weights(model_name_or_path, model=module, **places)
        return module

    @classmethod
    def of_settings(cls, settings: Mapping[str, object]) -> Self:
        """Return a new module with the settings that one was saved with."""
        return cls(**settings)

    @classmethod
    def load_complete(cls, folder: Path, noun: str) -> Self:
        """Load the module from its own folder.

        Args:
            folder: The folder.
            noun: What the module is to the user, for the message.

        Raises:
            InputError: A file is missing or damaged.
        """
        # JSON, safetensors, torch and the constructor raise exceptions of different kinds.
        problem = f"{folder} is not a complete {noun}"
        with explained(problem, "delete it to start with a new one", Exception):
            return cls.load(str(folder))
