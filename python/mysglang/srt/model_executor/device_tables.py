"""The tables of the device: which pages hold a row's tokens, and which token each row sampled last.

              page table [num_slots + 1, max_pages]           newest [num_slots + 1]
    slot 0    page of positions 0 … p-1, p … 2p-1, …          token
    …
    num_slots the row of padding, all page 0                  never read by a request

The layers with a window that have pages of their own have a page table like the first for each window.

All change only in the order of steps: a step's table writes come before anything else of it, its new tokens last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mysglang.srt.kernels.newest import record_tokens, resolve_tokens
from mysglang.srt.model_executor.step_columns import window_pages


class DeviceTables:
    """Rows by slot. Columns and contents are the scheduler's."""

    def __init__(self, num_slots: int, max_pages: int, device: torch.device, windows: Sequence[int] = ()) -> None:
        self.pages = torch.zeros(num_slots + 1, max_pages, dtype=torch.int32, device=device)
        self.windows = {window: torch.zeros_like(self.pages) for window in windows}
        """Of layers with these windows."""
        self.newest = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)

    @property
    def padding_slot(self) -> int:
        """The row after the requests'."""
        return len(self.newest) - 1

    def write_pages(self, entries: Tensor, pages: Tensor) -> None:
        """Set the entries, given as slot * max_pages + column [W] int64, to pages [W] int32."""
        self.pages.view(-1).index_copy_(0, entries, pages)

    def write(self, uploaded: Mapping[str, Tensor]) -> None:
        """Set what `table_columns` gave, in all page tables; nothing if there was nothing."""
        if "table_entries" not in uploaded:
            return
        entries = uploaded["table_entries"]
        self.write_pages(entries, uploaded["table_pages"])
        for window, table in self.windows.items():
            table.view(-1).index_copy_(0, entries, uploaded[window_pages(window)])

    def resolve(self, input_ids: Tensor, slots: Tensor) -> Tensor:
        """[T] int64 ids, with the newest token of its slot in place of each that is negative."""
        return resolve_tokens(input_ids, slots, self.newest)

    def record(self, slots: Tensor, tokens: Tensor) -> None:
        """Remember the sampled tokens of distinct slots. The -1 of a broken row becomes 0: it must not be looked up."""
        record_tokens(self.newest, slots, tokens)
