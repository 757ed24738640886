"""`turnbuckle lab`: hosts with two switches each on this machine, faults at the switches, and a meter of outages.

From Python: `lab.Lab` (up, attach, down), `topology` (names and addresses), `faults` (inject, restore, schedules),
`meter.OutageMeter`.
"""
