"""The training tasks of the emulated cloud: ordinary torch code, as in Table 4.2 of the thesis.

Names are known without torch; a module is imported where it is trained.
"""

from __future__ import annotations

import re
from typing import Final

_PACKAGE: Final = "services.collector.emulator.tasks"
TASKS: Final = {
    "audio-conv": f"{_PACKAGE}.audio_conv:TASK",
    "image-cnn": f"{_PACKAGE}.images:IMAGE_CNN",
    "image-digits": f"{_PACKAGE}.images:IMAGE_DIGITS",
    "image-vgg": f"{_PACKAGE}.images:IMAGE_VGG",
    "recommendation": f"{_PACKAGE}.recommendation:TASK",
    "tabular-mlp": f"{_PACKAGE}.tabular_mlp:TASK",
    "tagging-lstm": f"{_PACKAGE}.tagging_lstm:TASK",
    "text-dnn": f"{_PACKAGE}.text_dnn:TASK",
    "text-transformer": f"{_PACKAGE}.text_transformer:TASK",
}
"""Where each is, for `pkgutil.resolve_name`."""
_REPEATED: Final = re.compile(r"(?P<task>.+)-x(?P<factor>[1-9][0-9]{0,3})")


def base_task(name: str) -> tuple[str, int]:
    """Return a task's own name and how many times its epochs are trained: ``image-cnn-x20`` is ``image-cnn``, 20.

    A job of minutes beside the same job of seconds; its name differs, so that records of both are told apart.
    """
    if name not in TASKS and (found := _REPEATED.fullmatch(name)) is not None:
        return found["task"], int(found["factor"])
    return name, 1
