"""Arrivals: pages that are loaded layer by layer while a step runs; each layer waits for its own, and no more."""

from __future__ import annotations

from mysglang.srt.platforms.interface import Event


class Arrivals:
    """Events that the next step must still wait for, by layer."""

    def __init__(self) -> None:
        self._events: dict[int, list[Event]] = {}

    def expect(self, layer_id: int, event: Event) -> None:
        """Notes that the layer's pages have arrived once the device has passed this event."""
        self._events.setdefault(layer_id, []).append(event)

    def wait(self, layer_id: int) -> None:
        """Lets work that is queued from now on run after the arrival of this layer's pages."""
        for event in self._events.pop(layer_id, ()):
            event.hold_up()

    def wait_for_all(self) -> None:
        """Waits for the pages of all layers, for steps that cannot stop between two layers."""
        for layer_id in list(self._events):
            self.wait(layer_id)
