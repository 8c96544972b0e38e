"""The Belay wire contract v1 as pure functions and records: no Django, no I/O, no clock.

Every rule that both storages must agree on lives here, once, with its clause.
"""
