"""The loss of each step, read seldom, since each reading makes the host wait for the device."""

from _whyidle_hook.around import put

HELD = 50
"""Losses are kept as tensors until there are so many, and read together."""


class Losses:
    """What the job calls ``backward()`` on, where the option ``loss`` asks for it."""

    def __init__(self, observer):
        self._observer = observer
        self._guard = observer.guard("loss")
        self.reset()

    def reset(self):
        """As at the start, in a child that was forked off."""
        self._held = []

    def install(self, torch):
        """Keep every tensor of one element that ``backward`` is called on."""
        if not self._observer.options.get("loss"):
            return
        backward = torch.Tensor.backward

        def noted(tensor, *args, **options):
            if self._guard.on:
                with self._guard:
                    if tensor.numel() == 1:
                        self._held.append((self._observer.steps.done, tensor.detach()))
            return backward(tensor, *args, **options)

        put(torch.Tensor, "backward", noted, backward)

    def stepped(self):
        """Read what is held, if it is enough."""
        if len(self._held) >= HELD:
            self.read()

    def read(self):
        """The mean of each step's losses; null where it is infinite or not a number."""
        held, self._held = self._held, []
        with self._guard:
            sums = {}
            for step, tensor in held:
                sums.setdefault(step, []).append(float(tensor))
            for step, values in sums.items():
                value = sum(values) / len(values)
                self._observer.events.row("loss", [step, value if value - value == 0 else None])
