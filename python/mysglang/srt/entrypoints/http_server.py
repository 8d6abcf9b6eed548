"""launch_server: a whole server in this process and its children, from the taken port to the exit code.

    port taken → model found → children launched → front door answers 503 → children ready → warm → gate open
                                    … until a signal asks to end, or a process of ours has died …
    gate closed → open requests end, or are told why they cannot → children ended → sockets removed → exit code

This file goes as far as the launched children and stays light, so that they start as early as can be; what follows
(`server_life.py`) is loaded while they load what they need.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable

import uvloop

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.entrypoints.launcher import THE_CHILDREN, ChildModules, Subprocesses, find_model
from mysglang.srt.errors import ConfigError, WorkerDied
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.exit_codes import ExitCode, complain
from mysglang.srt.utils.log_output import flush_logs, never_wait_for_readers
from mysglang.srt.utils.logging import configure_logging
from mysglang.srt.utils.network import bind_http_socket
from mysglang.srt.utils.process import STOP_SIGNALS, keep_imports, paused_gc, raise_file_limit
from mysglang.srt.utils.shortage import shortage_in

logger = logging.getLogger(__name__)

SAME_SIGNAL_S = 0.5
"""Wrappers (`timeout`, shells, supervisors) deliver one wish to end twice: to the process, and to its group."""


def launch_server(server_args: ServerArgs, modules: ChildModules = THE_CHILDREN) -> ExitCode:
    """Serves until asked to end. Returns the exit code; errors have been printed on stderr."""
    never_wait_for_readers()
    configure_logging(server_args.observability.log_level)
    raise_file_limit()
    try:
        # Before anything heavy: a busy port ends the launch at once.
        with bind_http_socket(server_args.serving.host, server_args.serving.port) as listener:
            found, model_config = find_model(server_args)
            return uvloop.run(_serve(found, model_config, modules, listener))
    except (ConfigError, WorkerDied) as error:
        complain(error)
        return ExitCode.START_FAILED
    except Exception as error:
        if (shortage := shortage_in(error)) is None:
            raise
        complain(WorkerDied(f"the server cannot run: this machine is short of resources ({shortage})."))
        return ExitCode.START_FAILED
    except KeyboardInterrupt:
        # During a download; once there are children, signals have their handler.
        return ExitCode.DONE


async def _serve(
    server_args: ServerArgs, model_config: ModelConfig, modules: ChildModules, listener: socket.socket
) -> ExitCode:
    """Starts the server and serves until it ends. Raises ConfigError or WorkerDied if it never became ready."""
    # This comes first: everything that starts from here on is ended in order, whenever a signal arrives.
    stop = StopSignals()
    children = Subprocesses(server_args, modules)
    stop.kill = children.kill
    try:
        with paused_gc():
            from mysglang.srt.entrypoints.server_life import serve

            keep_imports()
        return await serve(server_args, model_config, children, stop.requested, listener)
    finally:
        await children.stop()


class StopSignals:
    """Handles SIGINT, SIGTERM and SIGHUP: the first signal starts the shutdown, a second one ends the server at once.
    SIGINT counts even if the shell ignores it, as it does for background jobs. A SIGHUP that is ignored, as with
    `nohup`, stays ignored.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self._requested_at = 0.0
        self.kill: Callable[[], None] = lambda: None
        """Ends all started processes at once."""
        for number in STOP_SIGNALS:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if self.requested.is_set():
            if now - self._requested_at < SAME_SIGNAL_S:
                return
            logger.warning("The server ends at once, because a second %s came; open requests are lost.", number.name)
            self.kill()
            flush_logs()
            os._exit(ExitCode.CUT_OFF)
        self._requested_at = now
        self.requested.set()
