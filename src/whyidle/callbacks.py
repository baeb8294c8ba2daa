"""Callbacks for frameworks that own the training loop: they tell ``whyidle run`` where steps end.

::

    from whyidle.callbacks import LightningCallback
    trainer = lightning.Trainer(callbacks=[LightningCallback()])

    from whyidle.callbacks import TrainerCallback
    trainer = transformers.Trainer(..., callbacks=[TrainerCallback()])

A step is what the optimizer steps once for: with gradient accumulation, several batches. Outside
``whyidle run`` the callbacks do nothing. This module imports no framework; asking for a callback
imports the one that it is for.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import whyidle

__all__ = ["LightningCallback", "TrainerCallback"]

if TYPE_CHECKING:
    LightningCallback: Any
    TrainerCallback: Any


def _announced() -> None:
    """Tell the hook that steps will be said, so that it does not take the optimizer's first."""
    announce = getattr(sys.modules.get("_whyidle_hook"), "steps_will_be_said", None)
    if announce is not None:
        announce()


def _evaluating(begins: bool) -> None:
    """Tell the hook that an evaluation begins or has ended."""
    tell = getattr(sys.modules.get("_whyidle_hook"), "evaluation", None)
    if tell is not None:
        tell(begins)


class LightningSteps:
    """What the callback for Lightning does; a step is said when ``global_step`` has advanced.

    ``global_step`` counts steps of optimizers, so batches that only accumulate gradients are no
    steps, and a batch for which several optimizers step is one.
    """

    _stepped = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Training begins, or goes on from a checkpoint."""
        self._stepped = trainer.global_step
        _announced()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch is done, and with it a step if an optimizer stepped."""
        if trainer.global_step != self._stepped:
            self._stepped = trainer.global_step
            whyidle.step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """An evaluation begins; Lightning ends it without a call of the model's ``train()``."""
        _evaluating(True)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """An evaluation has ended."""
        _evaluating(False)


class TrainerSteps:
    """What the callback for the Trainer of Hugging Face does: its steps are the optimizer's."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Training begins, or goes on from a checkpoint."""
        _announced()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The optimizer has stepped; batches that only accumulate end elsewhere."""
        whyidle.step()


_MADE: dict[str, tuple[type, str, Sequence[str], str]] = {
    "LightningCallback": (
        LightningSteps,
        "Callback",
        ("lightning.pytorch", "pytorch_lightning"),
        "Lightning, which is not installed here: pip install lightning",
    ),
    "TrainerCallback": (
        TrainerSteps,
        "TrainerCallback",
        ("transformers",),
        "transformers, which is not installed here: pip install 'transformers[torch]'",
    ),
}
"""Name -> what it does, the framework's base class, the modules that may hold it, what lacks."""


def __getattr__(name: str) -> Any:
    """Build a callback when it is first asked for; ImportError says what to install."""
    if name not in _MADE:
        raise AttributeError(f"module 'whyidle.callbacks' has no attribute {name!r}")
    own, base, modules, lacking = _MADE[name]
    found = next((module for module in modules if module in sys.modules), None)
    for module in (found,) if found else modules:
        try:
            parent = getattr(importlib.import_module(module), base)
        except ModuleNotFoundError as error:
            if error.name not in (module, module.partition(".")[0]):
                raise
            continue
        told = {"__module__": __name__, "__doc__": own.__doc__}
        made = globals()[name] = type(name, (own, parent), told)
        return made
    raise ImportError(f"whyidle.callbacks.{name} needs {lacking}")


def __dir__() -> list[str]:
    return sorted(__all__)
