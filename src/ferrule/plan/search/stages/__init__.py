"""What a search knows of one stage: its cost by layer, its memory, and the ways to cut it over devices."""
