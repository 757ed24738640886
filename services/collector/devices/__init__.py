"""Devices that a training job may use, as the cluster.yaml of `turnbuckle plan`: `turnbuckle devices`."""
