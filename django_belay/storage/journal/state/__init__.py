"""The state machine of a store: decoded records in, state out. Nothing here does I/O."""
