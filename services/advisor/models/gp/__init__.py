"""The served model: a Gaussian process over tasks and configurations."""
