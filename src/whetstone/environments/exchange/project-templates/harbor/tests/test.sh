#!/bin/sh
# Repeat the recorded actions with the data in this folder; without actions, the reward is that of an empty episode.
cd /tests || exit 1
python -m whetstone.environments.exchange.container_episode grade > /logs/verifier/reward.txt
