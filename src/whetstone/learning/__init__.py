"""How do trajectories become a better policy? Columns, credit, losses, packing, and the learner behind one seam."""
