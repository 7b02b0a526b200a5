"""The engine: schedules tasks, and decides what their transactions read and which ones commit together."""
