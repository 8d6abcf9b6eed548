"""Commands from another front: routes that change a whole server change every front of it."""

from __future__ import annotations

from mysglang.srt.entrypoints.front import RequestLogSettings
from mysglang.srt.managers.tokenizer_manager import TokenizerManager
from mysglang.srt.messages.control import FreezeFrontGcReq, FrontOrder, RequestLogReq
from mysglang.srt.utils.process import freeze_heap


def obey(manager: TokenizerManager, settings: RequestLogSettings) -> None:
    """Makes `manager` carry out what other fronts order about the log and the garbage collector."""

    def change_log(order: FrontOrder) -> None:
        assert isinstance(order, RequestLogReq)
        settings.log_requests, settings.dump_folder = order.log_requests, order.dump_folder

    manager.order_handlers[RequestLogReq] = change_log
    manager.order_handlers[FreezeFrontGcReq] = lambda _order: freeze_heap()
