"""nuScenes: names, splits, tables and key frames; nothing is imported here."""
