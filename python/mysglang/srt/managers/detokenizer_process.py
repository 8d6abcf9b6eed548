"""run_detokenizer_process: the detokenizer as a process. Set up, report ready, loop, report death. Imports no torch."""

from __future__ import annotations

import msgspec

from mysglang.srt.managers.child import run_child, tell_parent
from mysglang.srt.managers.detokenizer_manager import DetokenizerManager
from mysglang.srt.managers.model_files import load_tokenizer
from mysglang.srt.messages.channels import Pull, Push
from mysglang.srt.messages.codec import ToDetokenizer, ToTokenizer, detokenizer_codec, tokenizer_codec
from mysglang.srt.messages.launch import Ready
from mysglang.srt.server_args import PortArgs, ServerArgs
from mysglang.srt.utils.logging import configure_logging
from mysglang.srt.utils.process import ParentLink, freeze_heap, set_title

DETOKENIZER_TITLE = "mysglang::detokenizer"


class DetokenizerLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """What the detokenizer process is told."""

    server_args: ServerArgs
    port_args: PortArgs


def run_detokenizer_process(link: ParentLink) -> None:
    """Serve until the process is ended. Raises what keeps it from going on."""
    launch = msgspec.json.decode(link.spec, type=DetokenizerLaunch)
    args, ports = launch.server_args, launch.port_args
    set_title(DETOKENIZER_TITLE)
    configure_logging(args.observability.log_level, "DETOK")
    from_scheduler: Pull[ToDetokenizer] = Pull(ports.detokenizer_ipc_name, detokenizer_codec())
    to_tokenizer: Push[ToTokenizer] = Push(ports.tokenizer_ipc_name, tokenizer_codec())
    manager = DetokenizerManager(from_scheduler, to_tokenizer, load_tokenizer(args.model))
    freeze_heap()
    tell_parent(link, Ready())
    manager.event_loop()


if __name__ == "__main__":
    run_child(run_detokenizer_process)
