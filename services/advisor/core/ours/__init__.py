"""Our predictor: a Gaussian process over tasks and configurations, and what follows from its posterior."""
