"""The programs of kernel/: loaded, and the records that they send."""
