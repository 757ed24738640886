"""The Gaussian process that is served."""
