"""What several services, or a service and the command, share about training jobs; it knows none of them.

Here: workers in sandboxes, and their environment; the user's module, and a model as a chain of layers; frames between
workers and aggregators; records of jobs and runs, on the bus and in files; what a file says of a task. Not here: what
one service alone uses; interfaces of the kernel and of engines (`services._host`); processes, bus and command lines
(`services._runtime`); what services send each other (`schemas`).
"""
