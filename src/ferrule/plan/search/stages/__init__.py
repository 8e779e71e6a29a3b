"""Stage description for a search: its cost by layer, its memory, and the ways to cut it over devices."""
