"""Remedies that are tried on a running job without touching its source.

``options["remedies"]`` maps names to values. Each remedy is a function that puts patches in place;
a patch asks ``take()`` where it would act. With ``options["dry"]`` nothing is changed: a remedy
only says whether it could act, which is how a baseline run finds the candidates.
"""

import os

from _whyidle_hook import (
    remedies_loaders,
    remedies_model,
    remedies_optimizer,
    remedies_parallel,
    remedies_pauses,
    remedies_switches,
)

KNOWN = {}
for _part in (
    remedies_loaders,
    remedies_switches,
    remedies_pauses,
    remedies_optimizer,
    remedies_model,
    remedies_parallel,
):
    KNOWN.update(_part.KNOWN)


class Remedy:
    """One remedy in this process: what it was asked, and whether it acted.

    Says ``remedy`` once when it first acts (or, dry, could act), and once per reason why not.
    """

    def __init__(self, name, value, events, dry):
        self.name = name
        self.value = value
        self.dry = dry
        self.count = 0
        self._events = events
        self._process = os.getpid()
        self._reasons = set()

    def take(self, why=None):
        """Whether to act now; False in a dry run. Says so the first time."""
        if self._process != os.getpid():
            self._process, self.count = os.getpid(), 0
        self.count += 1
        if self.count == 1:
            self._say(applied=not self.dry, could=True, why=why)
        return not self.dry

    def refuse(self, why):
        """Say why it does not act here."""
        if why not in self._reasons and len(self._reasons) < 20:
            self._reasons.add(why)
            self._say(applied=False, could=False, why=why)

    def broke(self, error):
        """Say that it failed, which is a reason not to have acted."""
        self.refuse("it failed: %r" % (error,))

    def _say(self, **what):
        self._events().say("remedy", name=self.name, value=self.value, **what)


def install(observer, torch):
    """Put the patches of all remedies in place; one that fails is noted and left out."""
    options = observer.options
    dry = bool(options.get("dry"))
    made = []
    for name, value in options["remedies"].items():
        remedy = Remedy(name, value, lambda: observer.events, dry and name != "seed")
        made.append(remedy)
        put = KNOWN.get(name)
        if put is None:
            remedy.refuse("this version of the hook does not know it")
            continue
        try:
            put(torch, remedy)
        except Exception as error:  # noqa: BLE001  a remedy that does not fit costs itself, not the job
            remedy.broke(error)
    _tell_at_end(made, observer)


def _tell_at_end(made, observer):
    """Before the observer ends: how often each remedy acted."""
    end = observer.end

    def ended(reason):
        for remedy in made:
            if remedy.count:
                observer.events.say("remedy_used", name=remedy.name, count=remedy.count)
                remedy.count = 0
        end(reason)

    observer.end = ended
