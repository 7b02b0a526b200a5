"""Collections of Storage as relations: their columns, their contents at a time, and their updates."""
