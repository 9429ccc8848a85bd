"""Where else do the numbers of a run go? To TensorBoard, Weights & Biases, MLflow, Trackio, or a class of yours."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.reporting.trackers.catalogue import TRACKERS
    from whetstone.reporting.trackers.feed import Feed
    from whetstone.reporting.trackers.mlflow import MLflow
    from whetstone.reporting.trackers.protocol import TrackedRun, Tracker
    from whetstone.reporting.trackers.tensorboard import TensorBoard
    from whetstone.reporting.trackers.trackio import Trackio
    from whetstone.reporting.trackers.wandb import WeightsAndBiases

__getattr__, __dir__ = window(__name__)

__all__ = ["TRACKERS", "Feed", "MLflow", "TensorBoard", "TrackedRun", "Tracker", "Trackio", "WeightsAndBiases"]
