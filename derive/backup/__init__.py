"""Backups of data folders: taken while everything runs, restored anywhere, and checked file by file."""
