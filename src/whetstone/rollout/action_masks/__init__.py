"""Action masks: turns in which the policy can only take some actions."""

from whetstone.rollout.action_masks.admissible_actions import AdmissibleActions as AdmissibleActions
from whetstone.rollout.action_masks.token_trie import TokenTrie as TokenTrie

ACTION_MASKS = {"admissible": AdmissibleActions}
