"""Distrust: what is done about a result that is not finite, beside telling the client.

Keys and values of prompts are in the prefix cache before they are computed, so others may have read them by now, and
would go on finding them. What a finite result vouches for is kept; what nothing vouches for goes out of the cache. Who
shares it is judged by results of its own, and a request that only found such pages is computed once more without them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.messages.outputs import Abort
from mysglang.srt.scheduling.lane import Lanes
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.residency import Residency
from mysglang.srt.scheduling.retraction import Retraction

logger = logging.getLogger(__name__)

NOT_FINITE = Abort(
    "The model's output, or what a logit processor made of it, is not a finite number.",
    status=500,
    kind="InternalServerError",
)


class Distrust:
    """Ends rows whose result is not finite, and takes what they read out of the cache."""

    def __init__(
        self, table: RequestTable, kv: KvManager, lanes: Lanes, residency: Residency, retraction: Retraction
    ) -> None:
        self._table = table
        self._lanes = lanes
        self._kv = kv
        self._residency = residency
        self._retraction = retraction

    def end(self, broken: Sequence[int]) -> list[Req]:
        """The rows in these slots had no finite result, all others of the step had: their tokens are applied already.

        Returns the requests that end by it; the others wait to be computed again.
        """
        table, decoding = self._table, self._lanes.slots
        # The prompts of those that have had a finite result, also of who is broken now, were sound.
        for slot in decoding[table.known[decoding] > table.opened_len[decoding]].tolist():
            self._kv.confirm(slot)
        misled = [slot for slot in broken if self._kv.condemn(slot) and table.opened_cached[slot] > 0]
        ended = []
        for slot in broken:
            req = self._residency.drop(slot)
            if slot in misled and not req.doubted:
                req.doubted = True
                self._retraction.put_back(req)
            else:
                req.finish = NOT_FINITE
                ended.append(req)
        logger.error("%d requests had results that are not finite numbers; %d ended by it", len(broken), len(ended))
        return ended
