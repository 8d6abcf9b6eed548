"""`python -m mysglang.launch_server [OPTIONS]`: parse, resolve, serve. Nothing else."""

from __future__ import annotations

import sys

from mysglang.srt.entrypoints.http_server import launch_server
from mysglang.srt.errors import ConfigError
from mysglang.srt.server_args import prepare_server_args
from mysglang.srt.utils.exit_codes import ExitCode, complain
from mysglang.srt.utils.log_output import open_standard_files


def main() -> int:
    open_standard_files()
    try:
        server_args = prepare_server_args(sys.argv[1:])
    except ConfigError as error:
        complain(error)
        return ExitCode.BAD_OPTIONS
    return launch_server(server_args)


if __name__ == "__main__":
    sys.exit(main())
