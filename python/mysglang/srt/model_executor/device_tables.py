"""The tables of the device: which pages hold a row's tokens, and which token each row sampled last.

              page table [num_slots + 1, max_pages]           newest [num_slots + 1]
    slot 0    page of positions 0 … p-1, p … 2p-1, …          token
    …
    num_slots the row of padding, all page 0                  never read by a request

Each page space has a page table of this shape. All change only in the order of steps: a step's table writes come before
anything else of it, its new tokens last.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mysglang.srt.kernels.sampling import record_tokens, resolve_tokens
from mysglang.srt.model_executor.step_columns import loc_columns, page_columns
from mysglang.srt.platforms.slot_buffer import Keeping, SlotBuffer


def table_buffers(max_pages: int, spaces: int) -> tuple[SlotBuffer, ...]:
    """Returns the slot buffers of the page tables. They have a row for each slot, and one of padding."""
    pages = (SlotBuffer(name, 4 * max_pages, Keeping.DERIVED) for name in page_columns(spaces))
    return (*pages, SlotBuffer("newest_token", 8, Keeping.DERIVED))


class DeviceTables:
    """Tables on the device with a row for each slot. The scheduler decides their columns and contents."""

    def __init__(self, num_slots: int, max_pages: int, device: torch.device, *, spaces: int = 1) -> None:
        self.declared = table_buffers(max_pages, spaces)
        shape = (num_slots + 1, max_pages)
        self.pages = tuple(torch.zeros(shape, dtype=torch.int32, device=device) for _ in range(spaces))
        """The page table of each space."""
        self.newest = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)
        self.page_names = page_columns(spaces)
        """Names in an upload of what written entries become in each space."""
        self.loc_names = loc_columns(spaces)
        """Names of the KV slots that a step writes in each space."""

    @property
    def num_spaces(self) -> int:
        return len(self.pages)

    @property
    def max_pages(self) -> int:
        """Number of columns of each page table."""
        return self.pages[0].shape[1]

    @property
    def padding_slot(self) -> int:
        """The slot of padding rows: the one after all slots of requests."""
        return len(self.newest) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(buffer.nbytes(len(self.newest)) for buffer in self.declared)

    def write(self, uploaded: Mapping[str, Tensor]) -> None:
        """Writes the entries that `table_columns` returned to all page tables; nothing if there are none."""
        if "table_entries" not in uploaded:
            return
        entries = uploaded["table_entries"]
        for table, name in zip(self.pages, self.page_names, strict=True):
            table.view(-1).index_copy_(0, entries, uploaded[name])

    def locs(self, uploaded: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Returns the KV slots that a step writes, for each space. Raises KeyError if the step has none for one
        space.
        """
        return tuple(uploaded[name] for name in self.loc_names)

    def resolve(self, input_ids: Tensor, slots: Tensor) -> Tensor:
        """Returns [T] int64 ids, with the newest token of its slot in place of each negative one."""
        return resolve_tokens(input_ids, slots, self.newest)

    def record(self, slots: Tensor, tokens: Tensor) -> None:
        """Records the sampled tokens of distinct slots. The -1 of a broken row becomes 0, since it must not be looked
        up.
        """
        record_tokens(self.newest, slots, tokens)
