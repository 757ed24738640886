"""The thesis' networks (4.3.2, Figures 4.2 and 4.3, Table 4.3): what ours is compared with."""
