"""Time and memory of a model's layers on one kind of device, by the size of the micro-batch: `turnbuckle layers`."""
