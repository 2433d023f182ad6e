"""Metrics of the steps, read one step late: they have reached the host by then, so the device never waits."""

from shardlab.train.checkpoint import Checkpointer
from shardlab.train.metrics_log import MetricsLog
from shardlab.train.step import NO_FLAGS, ControlFlags, PendingStep, StepMetrics


class DeferredMetrics:
    """Waits for the previous step, once the next one was handed to the device, and logs it."""

    def __init__(self, log: MetricsLog, checkpointer: Checkpointer, *, skip: bool) -> None:
        """``skip``: count steps that are not finite instead of raising an error (see ``train_step``)."""
        self.log, self.checkpointer, self.skip = log, checkpointer, skip
        self.flags = NO_FLAGS
        """Requests of the ranks that are still pending."""
        self._pending: PendingStep | None = None
        self._metrics: StepMetrics | None = None
        self._seconds = 0.0

    def wait(self) -> None:
        """Wait for the step that was added last.

        Raises:
            UserError: see ``PendingStep.metrics``.
        """
        self._metrics = self._pending.metrics(skip=self.skip) if self._pending else None

    def add(self, pending: PendingStep | None, seconds: float = 0.0) -> None:
        """Add a step that was handed to the device, which took the host ``seconds``, and log the previous one."""
        if self._pending and self._metrics:
            step, metrics = self._pending.step, self._metrics
            self.log.step(step, metrics.loss, metrics.norm, self._seconds, **metrics.experts)
            self.checkpointer.skipped += not metrics.finite
            self.flags = ControlFlags(*(old or new for old, new in zip(self.flags, metrics.flags, strict=True)))
        self._pending, self._metrics, self._seconds = pending, None, seconds

    def flush(self) -> None:
        """Wait for all steps and log them: no weights are written before they are known to be finite.

        Raises:
            UserError: see ``PendingStep.metrics``.
        """
        self.wait()
        self.add(None)

    def clear_flags(self) -> None:
        self.flags = NO_FLAGS
