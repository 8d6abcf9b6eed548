"""run_detokenizer_process: the detokenizer as a process. Set up, report ready, loop, report death. Imports no torch."""

from __future__ import annotations

import msgspec

from mysglang.srt.managers.child import run_child, tell_parent
from mysglang.srt.managers.child_specs import DetokenizerLaunch, detokenizer_title
from mysglang.srt.managers.detokenizer_manager import DetokenizerManager
from mysglang.srt.managers.model_files import load_tokenizer
from mysglang.srt.messages.channels import Pull
from mysglang.srt.messages.codec import ToDetokenizer, detokenizer_codec
from mysglang.srt.messages.fanout import to_fronts
from mysglang.srt.messages.launch import Ready
from mysglang.srt.utils.logging import configure_logging
from mysglang.srt.utils.process import ParentLink, freeze_heap, keep_heap_small, set_title


def run_detokenizer_process(link: ParentLink) -> None:
    """Serve until the process is ended. Raises what keeps it from going on."""
    launch = msgspec.json.decode(link.spec, type=DetokenizerLaunch)
    args, ports = launch.server_args, launch.port_args
    set_title(detokenizer_title(launch.index))
    keep_heap_small()
    configure_logging(args.observability.log_level, "DETOK")
    from_scheduler: Pull[ToDetokenizer] = Pull(ports.detokenizer_ipc_names[launch.index], detokenizer_codec())
    to_tokenizer = to_fronts(ports.tokenizer_ipc_names)
    manager = DetokenizerManager(from_scheduler, to_tokenizer, load_tokenizer(args.model), index=launch.index)
    freeze_heap()
    tell_parent(link, Ready())
    manager.event_loop()


if __name__ == "__main__":
    run_child(run_detokenizer_process)
