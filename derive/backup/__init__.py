"""Backups of data folders: taken while tasks run, restored into any folder, and verified file by file."""
