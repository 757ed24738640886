"""Jobs that share links take turns: how well they fit beside each other, and by how much each is to be shifted. Pure.

After Cassini (Rajasekaran et al., NSDI 2024): an iteration goes around a circle, and jobs are turned so that they fit.
"""
