"""Options for files that the server keeps for its clients."""

from __future__ import annotations

from dataclasses import dataclass

from mysglang.srt.args.field import arg


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageArgs:
    """Files that clients upload, and batches of requests in such files."""

    file_storage_path: str | None = arg(
        None,
        help="Directory for /v1/files and /v1/batches, which only this server may use. If unset, these routes are off.",
    )
    file_storage_gb: float = arg(
        10.0, at_least=0, help="Size of all files together in GB. Uploads beyond it are refused."
    )
    max_batch_lines: int = arg(
        64,
        at_least=1,
        help="Largest number of batch lines that run at once. Fewer run while other requests need the capacity.",
    )
