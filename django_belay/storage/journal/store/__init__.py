"""The Storage protocol on a Store-v2 journal: decisions over rows in memory, records as their proof."""
