"""Registry of built-in trackers: recipe name → class."""

from whetstone.reporting.trackers.mlflow import MLflow
from whetstone.reporting.trackers.tensorboard import TensorBoard
from whetstone.reporting.trackers.trackio import Trackio
from whetstone.reporting.trackers.wandb import WeightsAndBiases

TRACKERS = {"mlflow": MLflow, "tensorboard": TensorBoard, "trackio": Trackio, "wandb": WeightsAndBiases}
