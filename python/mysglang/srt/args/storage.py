"""What the server keeps for its clients."""

from __future__ import annotations

from dataclasses import dataclass

from mysglang.srt.args.field import arg


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageArgs:
    """Files, and the batches that are made of them."""

    file_storage_path: str | None = arg(
        None, help="Directory for /v1/files and /v1/batches, of this server alone; without it there are none."
    )
    file_storage_gb: float = arg(10.0, at_least=0, help="Uploads are refused beyond so many GB of files.")
    max_batch_lines: int = arg(
        64, at_least=1, help="Lines of batches that are answered at once, where other requests leave room."
    )
