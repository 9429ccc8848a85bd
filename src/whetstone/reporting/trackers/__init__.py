"""Where else do the numbers of a run go? To TensorBoard, Weights & Biases, MLflow, Trackio, or a class of yours."""

from whetstone.reporting.trackers.feed import Feed
from whetstone.reporting.trackers.mlflow import MLflow
from whetstone.reporting.trackers.protocol import TrackedRun, Tracker
from whetstone.reporting.trackers.tensorboard import TensorBoard
from whetstone.reporting.trackers.trackio import Trackio
from whetstone.reporting.trackers.wandb import WeightsAndBiases

TRACKERS = {"mlflow": MLflow, "tensorboard": TensorBoard, "trackio": Trackio, "wandb": WeightsAndBiases}
"""By the names a recipe has for them."""

__all__ = ["TRACKERS", "Feed", "MLflow", "TensorBoard", "TrackedRun", "Tracker", "Trackio", "WeightsAndBiases"]
