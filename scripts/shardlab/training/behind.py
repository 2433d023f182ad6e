"""Metrics of the steps, read one step late: they have reached the host by then, so the device never waits."""

from shardlab.training.checkpoint import Checkpointer
from shardlab.training.metrics import MetricsLog
from shardlab.training.step import NOTHING, Figures, Taken, Wish


class Behind:
    """Waits for the previous step, once the next one was handed to the device, and logs it."""

    def __init__(self, log: MetricsLog, checkpointer: Checkpointer, *, skip: bool) -> None:
        """``skip``: count steps that are not finite instead of raising an error (see ``train_step``)."""
        self.log, self.checkpointer, self.skip = log, checkpointer, skip
        self.wish = NOTHING
        """Requests of the ranks that are still pending."""
        self._taken: Taken | None = None
        self._figures: Figures | None = None
        self._seconds = 0.0

    def wait(self) -> None:
        """Wait for the step that was added last.

        Raises:
            UserError: see ``Taken.figures``.
        """
        self._figures = self._taken.figures(skip=self.skip) if self._taken else None

    def add(self, taken: Taken | None, seconds: float = 0.0) -> None:
        """Add a step that was handed to the device, which took the host ``seconds``, and log the previous one."""
        if self._taken and self._figures:
            step, figures = self._taken.step, self._figures
            self.log.step(step, figures.loss, figures.norm, self._seconds)
            self.checkpointer.skipped += not figures.finite
            self.wish = Wish(*(ours or theirs for ours, theirs in zip(self.wish, figures.wish, strict=True)))
        self._taken, self._figures, self._seconds = taken, None, seconds

    def catch_up(self) -> None:
        """Wait for all steps and log them: no weights are written before they are known to be finite.

        Raises:
            UserError: see ``Taken.figures``.
        """
        self.wait()
        self.add(None)

    def granted(self) -> None:
        """Clear the requests, which were served."""
        self.wish = NOTHING
