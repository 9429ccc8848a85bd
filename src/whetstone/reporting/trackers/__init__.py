"""Experiment trackers: TensorBoard, Weights & Biases, MLflow, Trackio, or a custom class."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.reporting.trackers.tracker_registry import TRACKERS as TRACKERS
    from whetstone.reporting.trackers.dispatcher import TrackerDispatcher as TrackerDispatcher
    from whetstone.reporting.trackers.mlflow import MLflow as MLflow
    from whetstone.reporting.trackers.protocol import TrackedRun as TrackedRun, Tracker as Tracker
    from whetstone.reporting.trackers.tensorboard import TensorBoard as TensorBoard
    from whetstone.reporting.trackers.trackio import Trackio as Trackio
    from whetstone.reporting.trackers.wandb import WeightsAndBiases as WeightsAndBiases

__getattr__, __dir__ = export_lazily(__name__)
