"""SchedulerProfiler: torch's profiler around the scheduler's own loop, started and stopped by control messages.

The trace holds the process that schedules and launches, and its device; it is read by chrome://tracing and Perfetto.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

from mysglang.srt.managers.scheduler import Handlers
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToTokenizer
from mysglang.srt.messages.control import ControlReqOutput, StartProfileReq, StopProfileReq

logger = logging.getLogger(__name__)


class Recording(Protocol):
    """A trace that is being recorded."""

    def finish(self) -> Path:
        """Stop, and write it. Raises OSError."""
        ...


class SchedulerProfiler:
    """One recording at a time."""

    def __init__(self, to_tokenizer: Sender[ToTokenizer]) -> None:
        self._to_tokenizer = to_tokenizer
        self._recording: Recording | None = None
        self._steps_left: int | None = None

    def handlers(self) -> Handlers:
        """The rows that this part contributes to the dispatch table."""
        return {StartProfileReq: self.start_profile, StopProfileReq: self.stop_profile}

    def on_step(self) -> None:
        """A step is over; with the last one that was asked for the recording ends."""
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left == 0:
                self._finish()

    def start_profile(self, message: StartProfileReq) -> None:
        """Begin to record."""
        if self._recording is not None:
            self._reply(message.id, False, "A profile is being recorded already.")
            return
        try:
            self._recording = _TorchRecording(message)
        except (OSError, ValueError) as error:
            self._reply(message.id, False, f"The profile cannot be recorded: {error}")
            return
        self._steps_left = message.num_steps
        self._reply(message.id, True, f"Recording a profile into {message.output_dir}.")

    def stop_profile(self, message: StopProfileReq) -> None:
        """End the recording, which takes as long as its trace is large."""
        if self._recording is None:
            self._reply(message.id, False, "No profile is being recorded.")
            return
        self._reply(message.id, *self._finish())

    def _finish(self) -> tuple[bool, str]:
        assert self._recording is not None
        recording, self._recording, self._steps_left = self._recording, None, None
        try:
            path = recording.finish()
        except OSError as error:
            logger.error("a profile could not be written: %s", error)
            return False, f"The profile could not be written: {error}"
        logger.info("Profile written to %s", path)
        return True, f"Profile written to {path}."

    def _reply(self, number: int, success: bool, text: str) -> None:
        self._to_tokenizer.send(ControlReqOutput(id=number, success=success, message=text))


class _TorchRecording:
    def __init__(self, message: StartProfileReq) -> None:
        """Raises OSError where the directory cannot be made, ValueError for a GPU that is not there."""
        from torch.cuda import is_available
        from torch.profiler import ProfilerActivity, profile

        if "GPU" in message.activities and not is_available():
            raise ValueError("there is no GPU; ask for the activity CPU alone")
        kinds = {"CPU": ProfilerActivity.CPU, "GPU": ProfilerActivity.CUDA}
        self._path = Path(message.output_dir, f"{message.name}.trace.json.gz")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._profile = profile(
            activities=[kinds[name] for name in message.activities],
            with_stack=message.with_stack,
            record_shapes=message.record_shapes,
        )
        self._profile.start()

    def finish(self) -> Path:
        self._profile.stop()
        self._profile.export_chrome_trace(str(self._path))
        return self._path
