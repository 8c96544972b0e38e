"""Store-v2 bytes to frozen dataclasses and back. Nothing here does I/O."""
