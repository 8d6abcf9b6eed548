"""POST /start_profile: its body, and the command that it becomes. `Engine.start_profile` takes the same fields."""

from __future__ import annotations

import re
import time
from typing import Annotated, get_args

from pydantic import BeforeValidator, Field

from mysglang.srt.entrypoints.strict_model import OFF, StrictModel, not_here
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.messages.control import ProfileActivity, ProfileStage, StartProfileReq

PROFILE_S = 600.0
"""Seconds for torch's profiler to begin, of which the first time on a busy machine takes ten, and for a trace to be
written. If the engine dies, the wait ends.
"""

_FILE_NAME = re.compile(r"[\w.-]{1,100}")


def _number(value: object) -> object:
    """Converts digits to a number, because SGLang's benchmark sends the words of its command line as they are."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10 else value


Number = Annotated[int, BeforeValidator(_number, json_schema_input_type=int | str)]


class ProfileReqInput(StrictModel):
    """Body of POST /start_profile."""

    output_dir: Annotated[str, Field(min_length=1)] = "/tmp"
    start_step: Annotated[Number, Field(ge=0)] = 0
    """Number of scheduler steps since its start at which the recording begins; 0: at once."""
    num_steps: Annotated[Number, Field(ge=1)] | None = None
    """Steps after which the recording ends by itself."""
    activities: Annotated[list[ProfileActivity], Field(min_length=1)] = ["CPU"]
    """torch's profiler records CPU and GPU. STEPS are the phases of the scheduler's steps, in a separate file."""
    profile_by_stage: bool = False
    """If true, prefill and decode steps get one recording each, of `num_steps` of their own steps."""
    profile_stages: Annotated[list[ProfileStage], Field(min_length=1)] | None = None
    """The stages that get a recording each; both if only `profile_by_stage` is set."""
    with_stack: bool = False
    record_shapes: bool = False
    profile_id: str | None = None
    """Name of the trace's file; the time if unset."""
    profile_prefix: str | None = None
    unsupported = not_here("merge_profiles", "detailed_annotations", unless=OFF)

    def command(self, number: int) -> StartProfileReq:
        """Returns the command with that number. Raises InvalidRequest."""
        stages = list(dict.fromkeys(self.profile_stages or (get_args(ProfileStage) if self.profile_by_stage else ())))
        if stages and self.num_steps is None:
            raise InvalidRequest("num_steps: a profile by stage needs it, the steps of each stage.", param="num_steps")
        return StartProfileReq(
            id=number,
            output_dir=self.output_dir,
            name=self._name(),
            activities=self.activities,
            with_stack=self.with_stack,
            record_shapes=self.record_shapes,
            num_steps=self.num_steps,
            start_step=self.start_step,
            stages=stages,
        )

    def _name(self) -> str:
        """Returns the name of the trace: one name without a path, since a client names a file, not a place."""
        parts = [self.profile_prefix, self.profile_id or f"profile-{time.time():.0f}"]
        name = "-".join(part for part in parts if part)
        if _FILE_NAME.fullmatch(name) is None:
            param = "profile_prefix" if self.profile_prefix else "profile_id"
            raise InvalidRequest(
                f"{param}: a file's name has at most 100 letters, digits, dots, dashes and underscores, got {name!r}.",
                param=param,
            )
        return name
