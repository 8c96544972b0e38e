"""The files of a Store-v2 root: layout, ownership, writing, recovery, compaction, copies."""
