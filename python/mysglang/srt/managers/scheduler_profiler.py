"""SchedulerProfiler: recordings of the scheduler's own loop, started and stopped by control messages.

A recording begins at once, at a step, or with the first step of a stage; it ends after a number of steps, or when it is
told to. It is one file for what torch's profiler sees of this process and its device, and one for the phases of steps
(`step_trace.py`). Perfetto and chrome://tracing read both. A file appears when it is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mysglang.srt.managers.scheduler import Handlers, Loop, Stepped
from mysglang.srt.managers.step_trace import Figures, StepTrace, TracedSender, TracedSteps, WatchedSteps
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToTokenizer
from mysglang.srt.messages.control import ControlReqOutput, ProfileStage, StartProfileReq, StopProfileReq
from mysglang.srt.scheduling.batch import Launched, ScheduleBatch
from mysglang.srt.scheduling.lane import Lane
from mysglang.srt.scheduling.output_streamer import Streamer

logger = logging.getLogger(__name__)

STAGE_NAMES: dict[ProfileStage, str] = {"prefill": "EXTEND", "decode": "DECODE"}
"""Names of the stages in file names, as SGLang's."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """Objects that a recording observes."""

    loop: Loop
    streamer: Streamer
    figures: Figures
    steps_done: Callable[[], int]
    """Steps since the start of the scheduler."""
    rank_name: str
    """Rank of this process, for the ends of file names; empty for a single rank."""


class Recording(Protocol):
    """A trace that is being recorded."""

    def finish(self) -> Path:
        """Stops the recording and writes its file. Raises OSError."""
        ...


class SchedulerProfiler:
    """One profile at a time, of one recording or of one for each stage."""

    def __init__(self, to_tokenizer: Sender[ToTokenizer], profiled: Profiled) -> None:
        self._to_tokenizer = to_tokenizer
        self._profiled = profiled
        self._profile: _Profile | None = None

    def handlers(self) -> Handlers:
        """Returns the rows that this part contributes to the dispatch table."""
        return {StartProfileReq: self.start_profile, StopProfileReq: self.stop_profile}

    def start_profile(self, message: StartProfileReq) -> None:
        """Starts recording, or waits for the step with which the recording is to start."""
        if self._profile is not None and not self._profile.over:
            self._reply(message.id, False, "A profile is being recorded already.")
            return
        try:
            self._profile = _Profile(message, self._profiled)
        except (OSError, ValueError) as error:
            self._reply(message.id, False, f"The profile cannot be recorded: {error}")
            return
        self._reply(message.id, True, f"Recording a profile into {message.output_dir}.")

    def stop_profile(self, message: StopProfileReq) -> None:
        """Ends the recording. The larger its trace, the longer this takes."""
        if self._profile is None or self._profile.over:
            self._reply(message.id, False, "No profile is being recorded.")
            return
        profile = self._profile
        profile.end()
        if profile.error:
            self._reply(message.id, False, f"The profile could not be written: {profile.error}")
        elif not profile.written:
            self._reply(message.id, False, "The profile had not begun: no step came that it was to begin with.")
        else:
            self._reply(message.id, True, f"Profile written to {', '.join(map(str, profile.written))}.")

    def _reply(self, number: int, success: bool, text: str) -> None:
        self._to_tokenizer.send(ControlReqOutput(id=number, success=success, message=text))


class _Profile:
    """One profile, from the request until its files are written. `_CountedSteps` calls it at every step."""

    def __init__(self, message: StartProfileReq, profiled: Profiled) -> None:
        """Raises OSError if the directory cannot be made, ValueError if there is no GPU to profile."""
        self.over = False
        self.written: list[Path] = []
        self.error = ""
        self._message = message
        self._profiled = profiled
        self._recordings: list[Recording] = []
        self._stage: ProfileStage | None = None
        """The stage that is being recorded, of a profile by stages."""
        self._stages = list(message.stages)
        """Stages that are still to be recorded."""
        self._steps = 0
        """Steps of the recording that are over."""
        folder = Path(message.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        _check(message)
        self._counted = _CountedSteps(profiled.loop.scheduler, self)
        profiled.loop.scheduler = self._counted
        if not message.stages and profiled.steps_done() >= message.start_step:
            self._begin("")

    def launching(self, batch: ScheduleBatch) -> None:
        """Starts recording if the step about to be launched is the first to record."""
        if self.over or self._profiled.steps_done() < self._message.start_step:
            return
        if not self._message.stages:
            if not self._recordings:
                self._begin("")
            return
        stage: ProfileStage = "decode" if batch.mode.is_decode else "prefill"
        if stage in self._stages:
            # The stage that is being recorded ends here, even before it had all its steps.
            self._finish_recordings()
            self._stages.remove(stage)
            self._stage = stage
            self._begin(f"-{STAGE_NAMES[stage]}")

    def applied(self, launched: Launched) -> None:
        """Counts a step whose result was applied, and ends the recording after the last one."""
        if self.over or not self._recordings:
            return
        stage: ProfileStage = "decode" if launched.batch.mode.is_decode else "prefill"
        if self._stage in (None, stage):
            self._steps += 1
        if self._steps == self._message.num_steps:
            self._finish_recordings()
            if not self._stages:
                self.end()

    def end(self) -> None:
        """Writes the recording, and stops recording."""
        self._finish_recordings()
        self.over = True
        if self._profiled.loop.scheduler is self._counted:
            self._profiled.loop.scheduler = self._counted.inner

    def _begin(self, ending: str) -> None:
        message = self._message
        rank = f"-{self._profiled.rank_name}" if self._profiled.rank_name else ""
        path = Path(message.output_dir, f"{message.name}{rank}{ending}.trace.json.gz")
        self._steps = 0
        if set(message.activities) - {"STEPS"}:
            self._recordings.append(_TorchRecording(path, message))
        if "STEPS" in message.activities:
            beside = path.with_name(path.name.replace(".trace.", ".steps.trace."))
            self._recordings.append(_StepRecording(beside, self._counted, self._profiled))

    def _finish_recordings(self) -> None:
        recordings, self._recordings = self._recordings, []
        for recording in recordings:
            try:
                path = recording.finish()
            except OSError as error:
                logger.error("A profile could not be written: %s", error)
                self.error = str(error)
            else:
                logger.info("Profile written to %s.", path)
                self.written.append(path)


class _CountedSteps(WatchedSteps):
    """Calls a profile when steps begin and end."""

    def __init__(self, inner: Stepped, profile: _Profile) -> None:
        super().__init__(inner)
        self._profile = profile

    def run_batch(self, batch: ScheduleBatch) -> Launched:
        self._profile.launching(batch)
        return self.inner.run_batch(batch)

    def process_batch_result(self, launched: Launched, lane: Lane) -> None:
        self.inner.process_batch_result(launched, lane)
        self._profile.applied(launched)


class _StepRecording:
    """Stands between the counted steps and the scheduler, and between the streamer and its channel."""

    def __init__(self, path: Path, counted: _CountedSteps, profiled: Profiled) -> None:
        self._path = path
        self._counted = counted
        self._profiled = profiled
        self._trace = StepTrace()
        self._steps = TracedSteps(counted.inner, self._trace, profiled.figures)
        self._sender = TracedSender(profiled.streamer.to_detokenizer, self._trace)
        counted.inner = self._steps
        profiled.streamer.to_detokenizer = self._sender

    def finish(self) -> Path:
        self._counted.inner = self._steps.inner
        self._profiled.streamer.to_detokenizer = self._sender.inner
        self._trace.write(self._path, f"scheduler {self._profiled.rank_name}".strip())
        return self._path


class _TorchRecording:
    def __init__(self, path: Path, message: StartProfileReq) -> None:
        from torch.profiler import ProfilerActivity, profile

        kinds = {"CPU": ProfilerActivity.CPU, "GPU": ProfilerActivity.CUDA}
        self._path = path
        self._profile = profile(
            activities=[kinds[name] for name in message.activities if name in kinds],
            with_stack=message.with_stack,
            record_shapes=message.record_shapes,
        )
        self._profile.start()

    def finish(self) -> Path:
        self._profile.stop()
        part = self._path.with_name(f".part.{self._path.name}")
        self._profile.export_chrome_trace(str(part))
        part.replace(self._path)
        return self._path


def _check(message: StartProfileReq) -> None:
    """Raises ValueError if the request wants to record the GPU, but there is none."""
    if "GPU" in message.activities:
        from torch.cuda import is_available

        if not is_available():
            raise ValueError("there is no GPU; ask for the activity CPU alone")
