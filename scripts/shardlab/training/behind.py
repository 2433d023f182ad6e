"""The figures of the steps, read one step late: by then they are on the host, and the device never waits for it."""

from shardlab.training.checkpoint import Checkpointer
from shardlab.training.metrics import MetricsLog
from shardlab.training.step import NOTHING, Figures, Taken, Wish


class Behind:
    """Waits for the step before the one that was just handed to the device, and logs it."""

    def __init__(self, log: MetricsLog, checkpointer: Checkpointer, *, skip: bool) -> None:
        """``skip``: steps that are not finite are counted, and are no error (see ``train_step``)."""
        self.log, self.checkpointer, self.skip = log, checkpointer, skip
        self.wish = NOTHING
        """What the ranks want that was not granted yet."""
        self._taken: Taken | None = None
        self._figures: Figures | None = None
        self._seconds = 0.0

    def wait(self) -> None:
        """Wait for the last step that was added.

        Raises:
            UserError: see ``Taken.figures``.
        """
        self._figures = self._taken.figures(skip=self.skip) if self._taken else None

    def add(self, taken: Taken | None, seconds: float = 0.0) -> None:
        """A step was handed to the device, which took the host so many seconds; the one before is logged."""
        if self._taken and self._figures:
            step, figures = self._taken.step, self._figures
            self.log.step(step, figures.loss, figures.norm, self._seconds)
            self.checkpointer.skipped += not figures.finite
            self.wish = Wish(*(ours or theirs for ours, theirs in zip(self.wish, figures.wish, strict=True)))
        self._taken, self._figures, self._seconds = taken, None, seconds

    def catch_up(self) -> None:
        """Wait for all steps and log them: nothing is written of weights that are not known to be finite.

        Raises:
            UserError: see ``Taken.figures``.
        """
        self.wait()
        self.add(None)

    def granted(self) -> None:
        """What the ranks wanted was done."""
        self.wish = NOTHING
